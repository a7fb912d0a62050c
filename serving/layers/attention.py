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

    Called with hidden [T, hidden], cos and sin [T, head_dim // 2], all float32, it writes keys and values to the cache
    and returns [T, hidden].
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
        """hidden: [T, H] float32 → [T, H]; cos, sin: [T, head_dim // 2]; the rest as `Kernels` has it."""
        qkv = self.qkv(hidden, lora)
        if self._adjustment is not None:
            self._kernels.adjust_qkv(qkv, self._adjustment, self._shape)
        self._kernels.rotary_and_store_kv(qkv, cos, sin, kv_cache, metadata.slot_mapping, self._shape)
        attended = torch.empty(hidden.shape[0], self._shape.num_heads * self._shape.head_dim, device=hidden.device)
        self._kernels.paged_attention(qkv, kv_cache, metadata, self._shape, attended)
        return self.output(attended, lora)
