"""What a KV cache of the C++ kernels is: its type, its memory, its check.

Owns: that caches are bfloat16 where attention runs on tiles (cpp/kv_cache.h says how they lie there) and
float32 elsewhere. Knows nothing of who holds which block.

    cache = KvCaches(library, activations).allocate(num_blocks, block_size, num_kv_heads, head_dim)
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.arena import map_memory
from serving.kernels.base import Activations, AttentionShape
from serving.kernels.checks import check_tensor, require
from serving.kernels.library import CpuLibrary
from serving.kernels.memory import HUGE_PAGE
from serving.kernels.structs import shape_struct

_SLACK = 64  # values behind a cache: vectors may be read, never used, past its end
# A page is cleared when it is first written. All layers write the same block in one pass, so their caches
# must not come to a new page together: they start in different places of one, this far apart (the golden
# ratio of a page, so that any number of them is spread evenly; Knuth, TAOCP 3, 6.4).
_STAGGER = 1_296_128


class KvCaches:
    """Caches for a library that rounds to `activations`."""

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
        """The cache's block size.

        Raises:
            KernelArgumentError: it is not one that `allocate` would make for `shape`.
        """
        require(cache.dim() == 4, f"kv_cache has {cache.dim()} dimensions, wanted 4")
        width = cache.shape[3]
        require(width % shape.head_dim == 0, f"kv_cache has blocks of {width} values")
        block_size = width // shape.head_dim
        wanted = (None, 2, shape.num_kv_heads, None)
        check_tensor("kv_cache", cache, wanted, self._dtype(shape, block_size))
        return block_size

    def _dtype(self, shape: AttentionShape, block_size: int) -> torch.dtype:
        struct = shape_struct(shape, self._activations)
        return torch.bfloat16 if self._library.keeps_tiles(struct, block_size) else torch.float32
