"""Memory of our own in huge pages, where the system has them on request. Imports no torch.

buffer = map_pages(1 << 20)
"""

from __future__ import annotations

import mmap
from contextlib import suppress

HUGE_PAGE = 2 << 20


def map_pages(size: int) -> mmap.mmap:
    """At least `size` bytes, 0. Pages are taken when they are first written."""
    # Private: what mmap shares by default is a file in memory, which gets small pages whatever is advised.
    memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
