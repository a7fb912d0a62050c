"""Memory for weights and KV: huge pages, on machines that have them, and not all of them at once."""

from __future__ import annotations

import mmap
import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from serving.kernels.arena import HUGE_PAGE, Arena, map_memory, populate

_SMAPS = Path("/proc/self/smaps")


def flags_of(tensor: torch.Tensor) -> set[str]:
    """The kernel's flags of the mapping that holds a tensor (proc_pid_smaps(5))."""
    inside = False
    for line in _SMAPS.read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= tensor.data_ptr() < end
        elif inside and first == "VmFlags:":
            return set(rest.split())
    raise AssertionError("no mapping holds the tensor")


@pytest.mark.parametrize("make", [map_memory, lambda size: Arena().empty((size,), torch.uint8)])
def test_memory_is_private_because_what_is_shared_gets_small_pages(make):
    memory = make(3 * HUGE_PAGE)
    assert memory.sum() == 0
    assert "hg" in flags_of(memory), "huge pages are not asked for"
    assert "sh" not in flags_of(memory), "shared: a file in memory, which gets small pages"


def test_caches_come_to_new_pages_one_after_the_other(cpu):
    caches = [cpu.allocate_kv_cache(256, 16, 4, 64) for _ in range(16)]
    starts = sorted(cache.data_ptr() % HUGE_PAGE for cache in caches)
    starts.append(starts[0] + HUGE_PAGE)
    gaps = [after - before for before, after in pairwise(starts)]
    assert max(gaps) < HUGE_PAGE / 4
    assert min(gaps) > 0


def test_populated_memory_is_there_and_keeps_what_it_held():
    tensors = [map_memory(3 * HUGE_PAGE + 100)[7:] for _ in range(2)]
    tensors[0][HUGE_PAGE] = 5
    resident = resident_bytes()
    thread = threading.Thread(target=populate, args=(tensors,))
    thread.start()
    thread.join()
    assert resident_bytes() - resident > 4 * HUGE_PAGE
    assert tensors[0].sum() == 5
    assert os.getpriority(os.PRIO_PROCESS, 0) == 0, "only its own thread may be slowed"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
