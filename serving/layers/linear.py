"""A matmul with weights, 4-bit or not.

Owns: choosing the kernel by the kind of weight. Knows nothing of checkpoints.

    y = Linear(weight, kernels)(x)
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import AwqWeight, Kernels, LinearWeight


class Linear:
    """y = x · Wᵀ; there are no biases."""

    def __init__(self, weight: LinearWeight, kernels: Kernels) -> None:
        self.weight = weight
        self._kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
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
