"""Allocate and check the KV caches of the C++ kernels.

They are bfloat16 where attention runs on AMX tiles or on dot products of bfloat16 (cpp/kv_cache.h describes the
layout) and float32 elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.arena import map_memory
from serving.kernels.base import Activations, AttentionShape
from serving.kernels.library import CpuLibrary
from serving.kernels.memory import HUGE_PAGE
from serving.kernels.shape_checks import check_tensor, require
from serving.kernels.structs import shape_struct

_SLACK = 64  # values after a cache: kernels may load up to one vector past its end, without using it
# The system clears a page when it is first written. All layers write the same block in one forward pass, so their
# caches should not reach a new page at the same time: each starts at another offset in its page. Offsets advance by
# the golden ratio of a page, which spreads any number of them evenly (Knuth, TAOCP 3, 6.4).
_STAGGER = 1_296_128  # bytes


class KvCaches:
    """Makes caches for kernels that round to `activations`."""

    def __init__(self, library: CpuLibrary, activations: Activations) -> None:
        self._library = library
        self._activations = activations
        self._offset = 0

    def allocate(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> Tensor:
        """See `Kernels.allocate_kv_cache`."""
        dtype = self._dtype(AttentionShape(num_kv_heads, num_kv_heads, head_dim, None), block_size)
        shape = (num_blocks, 2, num_kv_heads, block_size * head_dim)
        count = num_blocks * 2 * num_kv_heads * block_size * head_dim
        memory = map_memory(2 * HUGE_PAGE + dtype.itemsize * (count + _SLACK))
        start = -memory.data_ptr() % HUGE_PAGE + self._offset
        self._offset = (self._offset + _STAGGER) % HUGE_PAGE
        return memory[start:][: dtype.itemsize * count].view(dtype).view(shape)

    def check(self, cache: Tensor, shape: AttentionShape) -> int:
        """Check that a cache is like one from `allocate`, and return its block size.

        Raises:
            KernelArgumentError: its shape or dtype does not fit `shape`.
        """
        require(cache.dim() == 4, f"kv_cache has {cache.dim()} dimensions, expected 4")
        width = cache.shape[3]
        require(width % shape.head_dim == 0, f"kv_cache has {width} values a block, not a multiple of {shape.head_dim}")
        block_size = width // shape.head_dim
        expected = (None, 2, shape.num_kv_heads, None)
        check_tensor("kv_cache", cache, expected, self._dtype(shape, block_size))
        return block_size

    def _dtype(self, shape: AttentionShape, block_size: int) -> torch.dtype:
        struct = shape_struct(shape, self._activations)
        return torch.bfloat16 if self._library.cache_uses_tiles(struct, block_size) else torch.float32
