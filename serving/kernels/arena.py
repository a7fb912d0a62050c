"""Tensors cut out of large pieces of memory: weights, KV and activations.

Owns: slabs that tensors are cut from. A pass reads all weights once: pages of 4 KiB would miss the address
cache every 4 KiB. Nothing is ever given back before all tensors of a slab are gone.

    quants = Arena().empty((72, 64, 8), torch.int32)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from serving.kernels.memory import map_pages

_SLAB = 32 << 20
_LINE = 64


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
    return torch.frombuffer(map_pages(size), dtype=torch.uint8)
