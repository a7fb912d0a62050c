"""The environment of a training process, and that freed memory is returned to the system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.train.allocator import KeptMemory, preload

ROOT = Path(__file__).parents[3]
# Blocks freed below a small one that is kept: glibc keeps their memory, and jemalloc if configured so.
PROGRAM = """
import numpy as np
from pipeline.train.allocator import release_freed_memory
from serving.devices import keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

keep_freed_memory()
blocks = [np.ones(2**17) for _ in range(300)]
last = np.ones(2**10)
del blocks
kept = resident()
release_freed_memory()
print(kept, resident())
"""


def test_variables_that_the_user_set_are_kept() -> None:
    chosen = {
        "LD_PRELOAD": "libmimalloc.so",
        "GLIBC_TUNABLES": "glibc.malloc.check=1",
        "MALLOC_CONF": "thp:never",
    }
    assert preload(chosen) == {}
    assert preload({} | preload({})) == {}, "the process is restarted only once"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("jemalloc", [False, True])
def test_freed_memory_is_kept_until_it_is_released(jemalloc: bool) -> None:
    environment = {**os.environ, **preload(os.environ), "PYTHONPATH": str(ROOT)}
    if jemalloc and "LD_PRELOAD" not in environment:
        pytest.skip("jemalloc is not installed")
    if not jemalloc:
        environment.pop("LD_PRELOAD", None)
    run = [sys.executable, "-c", PROGRAM]
    kept, left = map(float, subprocess.check_output(run, env=environment, text=True).split())
    assert kept > 300
    assert left < kept - 200


def test_memory_is_released_when_half_of_it_is_taken() -> None:
    available = iter([1000, 600, 499])
    memory = KeptMemory(lambda: next(available))
    assert not memory.release_when_scarce()
    assert memory.release_when_scarce()
