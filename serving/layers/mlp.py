"""The gated feed-forward layer."""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import Kernels
from serving.kernels.lora import LoraBatch
from serving.layers.linear import Linear


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
