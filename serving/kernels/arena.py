"""Allocates tensors from large slabs of memory in huge pages, and has the system allocate pages before a write.

A forward pass reads all weights once; with pages of 4 KiB it would miss the TLB every 4 KiB. The first write to a page
waits until the system has cleared it. On a virtual machine that can take 6 ms for a huge page, in the middle of a
forward pass.

    Thread(target=populate, args=(kv_caches, library.touch)).start()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from serving.devices import available_memory
from serving.kernels.memory import HUGE_PAGE, map_pages

_SLAB = 32 << 20
_LINE = 64  # bytes of a cache line


class Arena:
    """Allocates zeroed tensors from slabs, aligned to cache lines. A slab is freed when all of its tensors are."""

    def __init__(self) -> None:
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor; kernels may read up to one vector past its end."""
        size = math.prod(shape) * dtype.itemsize
        needed = -(-size // _LINE) * _LINE + _LINE
        if self._used + needed > self._slab.numel():
            self._slab = map_memory(max(_SLAB, needed))
            self._used = 0
        piece = self._slab[self._used : self._used + size]
        self._used += needed
        return piece.view(dtype).view(shape)


def map_memory(size: int) -> Tensor:
    """`size` zeroed bytes, uint8, whose memory pages are allocated when they are first written."""
    return torch.frombuffer(map_pages(size), dtype=torch.uint8)


_MAX_BYTES = 512 << 20
_MAX_FRACTION = 4  # at most a quarter of the available memory


def populate(tensors: Sequence[Tensor], touch: Callable[[int, int], None], max_bytes: int | None = None) -> None:
    """Allocate the pages of tensors, an equal part from the start of each; return when that is done.

    Run it in its own thread, with the usual priority: on Linux before 6.4 it holds the lock of the memory map while a
    page is cleared, and other threads wait for that lock. madvise(MADV_POPULATE_WRITE) holds it on any Linux.

    Args:
        tensors: CPU tensors, for example KV caches.
        touch: allocates the pages at an address, of a size in bytes; see `CpuLibrary.touch`.
        max_bytes: the limit of all tensors together; by default a quarter of the available memory, and at most 512 MiB.
    """
    if max_bytes is None:
        max_bytes = min(_MAX_BYTES, available_memory() // _MAX_FRACTION)
    each = max_bytes // max(1, len(tensors))
    for done in range(0, min(each, max((t.nbytes for t in tensors), default=0)), HUGE_PAGE):
        for tensor in tensors:
            size = min(HUGE_PAGE, tensor.nbytes - done)
            if size > 0:
                touch(tensor.data_ptr() + done, size)
