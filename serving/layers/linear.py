"""The linear layer, with 4-bit or unquantized weights."""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import AwqWeight, Kernels, LinearWeight
from serving.kernels.lora import LoraBatch, LoraSite


class Linear:
    """y = x · Wᵀ without a bias: [T, in_features] float32 → [T, out_features] float32.

    Args:
        weight: of one or several projections.
        site: which projections these are, for adapters.
        kernels: compute it.
    """

    def __init__(self, weight: LinearWeight, site: LoraSite, kernels: Kernels) -> None:
        self.weight = weight
        self._site = site
        self._kernels = kernels

    def __call__(self, x: Tensor, lora: LoraBatch | None = None) -> Tensor:
        """x: [T, K] float32 → [T, N]; lora: the adapters of the rows that have one."""
        out = self._multiply(x)
        if lora is not None:
            self._kernels.add_lora(x, lora, self._site, out)
        return out

    def _multiply(self, x: Tensor) -> Tensor:
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
