"""Root-mean-square normalization, optionally fused with adding to the residual.

normed = RmsNorm(weight, eps, kernels)(x)                # no residual yet
normed = RmsNorm(weight, eps, kernels).add(x, residual)  # residual += x, in place
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import Kernels


class RmsNorm:
    """x / rms(x) · weight (Zhang and Sennrich 2019): [T, hidden] → [T, hidden] float32."""

    def __init__(self, weight: Tensor, eps: float, kernels: Kernels) -> None:
        self.weight = weight
        self._eps = eps
        self._kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, H] float32 → [T, H]."""
        out = torch.empty_like(x)
        self._kernels.rms_norm(x, self.weight, self._eps, out)
        return out

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add x [T, hidden] to the residual in place, and return the normalized sum."""
        out = torch.empty_like(x)
        self._kernels.add_rms_norm(x, residual, self.weight, self._eps, out)
        return out
