"""Freed memory kept for the next pack, because page faults cost more than the arithmetic saves.

Owns: what is said to the C library's allocator, and to jemalloc where that is loaded in its place. A
pack takes and frees two gigabytes of activations; with jemalloc a step takes two thirds of the time
that it takes with glibc, whose lists of free blocks grow long. What is kept also grows, as blocks of one
size do not fit another, so it is given back now and then. Knows nothing of models.

    environment |= preload()          # before the interpreter starts
    keep_freed_memory(); every few steps: release_freed_memory()
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_PURGE_ALL = b"arena.4096.purge"  # 4096 is jemalloc's MALLCTL_ARENAS_ALL
_LIBRARY = "libjemalloc.so.2"


def preload(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that a process must start with; jemalloc only where it is installed."""
    found = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    paths = [Path("/usr/lib") / f"{machine}-linux-gnu" / _LIBRARY for machine in ("x86_64", "aarch64")]
    for path in (*paths, Path("/usr/lib64") / _LIBRARY):
        if path.exists() and "LD_PRELOAD" not in environment:
            found["LD_PRELOAD"] = str(path)
    # No time-based return of memory, and no arena of their own for large blocks, which returns them at once.
    found["MALLOC_CONF"] = "thp:always,oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:0,narenas:2"
    return {name: value for name, value in found.items() if name not in environment}


def keep_freed_memory() -> None:
    """Tell glibc to reuse activations' memory instead of returning it. Does nothing to jemalloc."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_ARENA_MAX, 1)


def release_freed_memory() -> None:
    """Give back what no tensor uses, so that a long run does not outgrow the machine."""
    loaded = ctypes.CDLL(None)
    if hasattr(loaded, "mallctl"):
        loaded.mallctl(_PURGE_ALL, None, None, None, 0)
    elif hasattr(loaded, "malloc_trim"):
        loaded.malloc_trim(0)
