"""The linear layer, with 4-bit or unquantized weights."""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import AwqWeight, Kernels, LinearWeight
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
