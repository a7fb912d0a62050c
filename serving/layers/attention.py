"""Attention over the paged KV cache: projections, rotation, storing, attending.

Owns: the order of the four. Knows nothing of blocks' owners or of positions beyond cos and sin.

    out = Attention(qkv, output, shape, kernels)(hidden, cos, sin, kv_cache, metadata)
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import AttentionMetadata, AttentionShape, Kernels
from serving.layers.linear import Linear

__all__ = ["Attention", "AttentionMetadata"]


class Attention:
    """Grouped-query attention; queries, keys and values come out of one matmul."""

    def __init__(self, qkv: Linear, output: Linear, shape: AttentionShape, kernels: Kernels) -> None:
        self.qkv = qkv
        self.output = output
        self._shape = shape
        self._kernels = kernels

    def __call__(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, kv_cache: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        qkv = self.qkv(hidden)
        self._kernels.rotary_and_store_kv(qkv, cos, sin, kv_cache, metadata.slot_mapping, self._shape)
        attended = torch.empty(
            hidden.shape[0], self._shape.num_heads * self._shape.head_dim, device=hidden.device
        )
        self._kernels.paged_attention(qkv, kv_cache, metadata, self._shape, attended)
        return self.output(attended)
