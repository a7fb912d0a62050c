"""The layers of a decoder: linear, norm, attention over the paged KV cache, and the gated feed-forward layer."""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import AttentionMetadata, AttentionShape, AwqWeight, Kernels, LinearWeight, QkvAdjustment
from serving.kernels.lora import LoraBatch, LoraSite


class Linear:
    """y = x · Wᵀ + b: [T, in_features] activation dtype → [T, out_features] float32, or its parts.

    The kernels that use a product add up its parts: [P, T, out_features]. With adapters or a bias it has none.

    Args:
        weight: the weight of one or several projections.
        site: which projections these are, for adapters.
        kernels: compute it.
        bias: [out_features] float32, added last; None where there is none.
    """

    def __init__(self, weight: LinearWeight, site: LoraSite, kernels: Kernels, bias: Tensor | None = None) -> None:
        self.weight = weight
        self._bias = bias
        self._site = site
        self._kernels = kernels

    def __call__(self, x: Tensor, lora: LoraBatch | None = None) -> Tensor:
        """x: [T, K] → [T, N] or [P, T, N]; lora: the adapters of the rows that have one."""
        out = self._multiply(x, has_parts=lora is None and self._bias is None)
        if lora is not None:
            self._kernels.add_lora(x, lora, self._site, out)
        if self._bias is not None:
            out.add_(self._bias)
        return out

    def _multiply(self, x: Tensor, *, has_parts: bool) -> Tensor:
        shape, weight = (x.shape[0], self.weight.out_features), self.weight
        if isinstance(weight, AwqWeight):
            parts = self._kernels.num_parts(weight) if has_parts else 1
            out = torch.empty((parts, *shape) if parts > 1 else shape, device=x.device)
            self._kernels.awq_gemm(x, weight, out)
            return out
        out = torch.empty(shape, device=x.device)
        start = 0
        for part in weight.parts:
            stop = start + part.shape[0]
            self._kernels.dense_gemm(x, part, out[:, start:stop], rounds=True)
            start = stop
        return out


class RmsNorm:
    """x / rms(x) · weight (Zhang and Sennrich 2019).

    Args:
        weight: [hidden] float32.
        eps: a number that is added to the mean square.
        kernels: compute it.
        dtype: the dtype of the result.
    """

    def __init__(self, weight: Tensor, eps: float, kernels: Kernels, dtype: torch.dtype) -> None:
        self.weight = weight
        self._eps = eps
        self._kernels = kernels
        self._dtype = dtype

    def __call__(self, residual: Tensor, x: Tensor | None = None) -> Tensor:
        """The residual [T, H] float32, normalized: [T, H]; x [T, H] or its parts [P, T, H] is first added in place."""
        out = torch.empty_like(residual, dtype=self._dtype)
        if x is None:
            self._kernels.rms_norm(residual, self.weight, self._eps, out)
        else:
            self._kernels.add_rms_norm(x, residual, self.weight, self._eps, out)
        return out


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


class Mlp:
    """SwiGLU (Shazeer 2020): down(silu(gate) · up), gate and up from one matmul."""

    def __init__(self, gate_up: Linear, down: Linear, kernels: Kernels) -> None:
        self.gate_up = gate_up
        self.down = down
        self._kernels = kernels

    def __call__(self, hidden: Tensor, lora: LoraBatch | None = None) -> Tensor:
        """hidden: [T, H] activation dtype → [T, H] or its parts [P, T, H], float32; lora: the rows' adapters."""
        gate_up = self.gate_up(hidden, lora)
        width, dtype = gate_up.shape[-1] // 2, self._kernels.activation_dtype
        activated = torch.empty(hidden.shape[0], width, dtype=dtype, device=hidden.device)
        self._kernels.silu_and_mul(gate_up, activated)
        del gate_up  # the product below may take its memory
        return self.down(activated, lora)
