"""Root-mean-square normalization, optionally fused with adding to the residual.

norm = RmsNorm(weight, eps, kernels, torch.float32)
normed = norm(x)                # no residual yet
normed = norm.add(x, residual)  # residual += x, in place
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import Kernels


class RmsNorm:
    """x / rms(x) · weight (Zhang and Sennrich 2019): [T, hidden] float32 → [T, hidden].

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

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, H] float32 → [T, H]."""
        out = torch.empty_like(x, dtype=self._dtype)
        self._kernels.rms_norm(x, self.weight, self._eps, out)
        return out

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add x [T, hidden], or its parts [P, T, hidden], to the residual in place, and return the normalized sum."""
        out = torch.empty_like(residual, dtype=self._dtype)
        self._kernels.add_rms_norm(x, residual, self.weight, self._eps, out)
        return out
