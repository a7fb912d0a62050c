"""Memory for weights, KV and activations in huge pages, where the system has them on request.

Owns: slabs that tensors are cut from. A pass reads all weights once: pages of 4 KiB would miss the address
cache every 4 KiB. Nothing is ever given back before all tensors of a slab are gone.

    quants = Arena().empty((72, 64, 8), torch.int32)
    populate(kv_caches)  # in a thread of its own
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_SLAB = 32 << 20
_LINE = 64
HUGE_PAGE = 2 << 20
_POPULATE_WRITE = 23  # madvise(2): MADV_POPULATE_WRITE, Linux 5.14
_MOST_POPULATED = 512 << 20
_LOWEST_PRIORITY = 19


class Arena:
    """Cuts tensors out of slabs, each at the start of a cache line; what they hold is 0."""

    def __init__(self) -> None:
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor with room behind it to read a vector too far."""
        size = math.prod(shape) * dtype.itemsize
        needed = -(-size // _LINE) * _LINE + _LINE
        if self._used + needed > self._slab.numel():
            self._slab = map_memory(max(_SLAB, needed))
            self._used = 0
        piece = self._slab[self._used : self._used + size]
        self._used += needed
        return piece.view(dtype).view(shape)


def map_memory(size: int) -> Tensor:
    """Bytes, 0. Pages are taken when they are first written."""
    # Private: what mmap shares by default is a file in memory, which gets small pages whatever is advised.
    memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def populate(tensors: Sequence[Tensor]) -> None:
    """Have the system clear the pages of these tensors before they are written: the first 512 MiB, all
    tensors from their beginnings on. Elsewhere than on Linux, does nothing. A virtual machine may need 6 ms
    for a huge page, so it is for a thread of its own, which it gives the lowest priority.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    libc = ctypes.CDLL(None)  # its calls let other threads run
    most = min(max(t.nbytes for t in tensors), _MOST_POPULATED // len(tensors))
    for done in range(0, most, HUGE_PAGE):
        for tensor in tensors:
            start = tensor.data_ptr() + done
            start += -start % mmap.PAGESIZE
            size = min(start + HUGE_PAGE, tensor.data_ptr() + tensor.nbytes) - start
            if size > 0:  # fails on older systems, where pages are cleared when first written
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _POPULATE_WRITE)
