"""Configure the memory allocator to keep freed memory for the next pack, which avoids page faults.

A pack allocates and frees two gigabytes of activations. With jemalloc a step takes two thirds of the time with glibc,
whose lists of free blocks grow long. Memory still becomes fragmented and would grow without limit, so what is unused is
released when half of the memory is taken. (Released after seconds, it cost a quarter of the time in page faults.)

    environment |= preload(environment)  # before the interpreter starts
    memory = KeptMemory()
    after each step: memory.release_when_scarce()

`serving/devices.py` has what glibc is told where there is no jemalloc.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path

from serving.devices import available_memory

_PURGE_ALL = b"arena.4096.purge"  # 4096 is jemalloc's MALLCTL_ARENAS_ALL
_LIBRARY = "libjemalloc.so.2"


def preload(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables to start a process with that are not set yet; they load jemalloc if it is installed."""
    variables = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    paths = [Path("/usr/lib") / f"{machine}-linux-gnu" / _LIBRARY for machine in ("x86_64", "aarch64")]
    for path in (*paths, Path("/usr/lib64") / _LIBRARY):
        if path.exists() and "LD_PRELOAD" not in environment:
            variables["LD_PRELOAD"] = str(path)
    # Memory is never returned by itself. Large blocks have no separate arena, which would return them at once.
    variables["MALLOC_CONF"] = "thp:always,oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1,narenas:2"
    return {name: value for name, value in variables.items() if name not in environment}


class KeptMemory:
    """Freed memory that the allocator keeps; `available` tells the available memory in bytes."""

    def __init__(self, available: Callable[[], int] = available_memory) -> None:
        self._available = available
        self._least = available() // 2

    def release_when_scarce(self) -> bool:
        """Return it to the system if less than half of what was available at first still is; whether it did."""
        scarce = self._available() < self._least
        if scarce:
            release_freed_memory()
        return scarce


def release_freed_memory() -> None:
    """Return unused memory to the system."""
    loaded = ctypes.CDLL(None)
    if hasattr(loaded, "mallctl"):
        loaded.mallctl(_PURGE_ALL, None, None, None, 0)
    elif hasattr(loaded, "malloc_trim"):
        loaded.malloc_trim(0)
