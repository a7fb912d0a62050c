"""The attention layer over the paged KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import AttentionMetadata, AttentionShape, Kernels, QkvAdjustment
from serving.kernels.lora import LoraBatch
from serving.layers.linear import Linear

__all__ = ["Attention", "AttentionMetadata"]


class Attention:
    """Grouped-query attention whose queries, keys and values come out of one matmul.

    Called with hidden [T, hidden], cos and sin [T, head_dim // 2], it writes keys and values to the cache and returns
    [T, hidden] or its parts [P, T, hidden], float32.
    """

    def __init__(
        self,
        qkv: Linear,
        output: Linear,
        shape: AttentionShape,
        kernels: Kernels,
        adjustment: QkvAdjustment | None = None,
    ) -> None:
        self.qkv = qkv
        self.output = output
        self._shape = shape
        self._kernels = kernels
        self._adjustment = adjustment

    def __call__(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        lora: LoraBatch | None = None,
    ) -> Tensor:
        """hidden: [T, H] activation dtype → [T, H] or its parts; cos, sin: [T, head_dim // 2]; else as in `Kernels`."""
        kernels, shape = self._kernels, self._shape
        qkv = self.qkv(hidden, lora)
        kernels.rotary_and_store_kv(qkv, cos, sin, kv_cache, metadata.slot_mapping, shape, self._adjustment)
        width = shape.num_heads * shape.head_dim
        attended = torch.empty(hidden.shape[0], width, dtype=kernels.activation_dtype, device=hidden.device)
        kernels.paged_attention(qkv, kv_cache, metadata, shape, attended)
        return self.output(attended, lora)
