"""Allocate memory in huge pages, if the system offers them. Imports no torch."""

from __future__ import annotations

import mmap
from contextlib import suppress

HUGE_PAGE = 2 << 20  # bytes


def map_pages(size: int) -> mmap.mmap:
    """At least `size` zeroed bytes; each page is allocated when it is first written."""
    # Private, because mmap's default, shared memory, gets small pages whatever madvise says.
    memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
