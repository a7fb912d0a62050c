"""Configure the memory allocator to keep freed memory for the next pack, which avoids page faults.

A pack allocates and frees two gigabytes of activations. With jemalloc a step takes two thirds of the time with glibc,
whose lists of free blocks grow long. Memory still becomes fragmented, so what is unused is released after seconds, and
every few steps.

    environment |= preload(environment)  # before the interpreter starts
    every few steps: release_freed_memory()

`serving/freed_memory.py` has what glibc is told where there is no jemalloc.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

_PURGE_ALL = b"arena.4096.purge"  # 4096 is jemalloc's MALLCTL_ARENAS_ALL
_LIBRARY = "libjemalloc.so.2"


def preload(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables to start a process with that are not set yet; they load jemalloc if it is installed."""
    variables = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    paths = [Path("/usr/lib") / f"{machine}-linux-gnu" / _LIBRARY for machine in ("x86_64", "aarch64")]
    for path in (*paths, Path("/usr/lib64") / _LIBRARY):
        if path.exists() and "LD_PRELOAD" not in environment:
            variables["LD_PRELOAD"] = str(path)
    # Memory is returned after seconds: kept for ever, it grew from 9 to 20 GB in half an hour of a 0.5B model. Large
    # blocks have no separate arena, which would return them at once.
    variables["MALLOC_CONF"] = "thp:always,oversize_threshold:0,dirty_decay_ms:3000,muzzy_decay_ms:0,narenas:2"
    return {name: value for name, value in variables.items() if name not in environment}


def release_freed_memory() -> None:
    """Return unused memory to the system, so that a long run does not run out of it."""
    loaded = ctypes.CDLL(None)
    if hasattr(loaded, "mallctl"):
        loaded.mallctl(_PURGE_ALL, None, None, None, 0)
    elif hasattr(loaded, "malloc_trim"):
        loaded.malloc_trim(0)
