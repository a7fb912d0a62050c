"""The linear layer, with 4-bit or unquantized weights."""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import AwqWeight, Kernels, LinearWeight


class Linear:
    """y = x · Wᵀ without a bias: [T, in_features] float32 → [T, out_features] float32."""

    def __init__(self, weight: LinearWeight, kernels: Kernels) -> None:
        self.weight = weight
        self._kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, K] float32 → [T, N]."""
        out = torch.empty(x.shape[0], self.weight.out_features, device=x.device)
        if isinstance(self.weight, AwqWeight):
            self._kernels.awq_gemm(x, self.weight, out)
            return out
        start = 0
        for part in self.weight.parts:
            stop = start + part.shape[0]
            self._kernels.dense_gemm(x, part, out[:, start:stop])
            start = stop
        return out
