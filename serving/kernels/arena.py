"""Allocate tensors from large slabs of memory in huge pages.

A forward pass reads all weights once; with pages of 4 KiB it would miss the TLB every 4 KiB.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from serving.kernels.memory import map_pages

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
