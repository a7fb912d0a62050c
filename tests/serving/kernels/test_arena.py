"""Memory for weights and KV uses huge pages, on machines that have them, and is not allocated all at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from serving.kernels.arena import Arena, map_memory
from serving.kernels.memory import HUGE_PAGE
from tests.serving.kernels.mappings import THP, flags_of


@pytest.mark.skipif(not THP.exists(), reason="this system has no huge pages")
@pytest.mark.parametrize("make", [map_memory, lambda size: Arena().empty((size,), torch.uint8)])
def test_memory_is_private_because_shared_memory_gets_small_pages(make):
    memory = make(3 * HUGE_PAGE)
    assert memory.sum() == 0
    assert "hg" in flags_of(memory), "huge pages are not requested"
    assert "sh" not in flags_of(memory), "shared: a file in memory, which gets small pages"


def test_caches_are_allocated_one_after_the_other(cpu):
    caches = [cpu.allocate_kv_cache(256, 16, 4, 64) for _ in range(16)]
    starts = sorted(cache.data_ptr() % HUGE_PAGE for cache in caches)
    starts.append(starts[0] + HUGE_PAGE)
    gaps = [after - before for before, after in pairwise(starts)]
    assert max(gaps) < HUGE_PAGE / 4
    assert min(gaps) > 0
