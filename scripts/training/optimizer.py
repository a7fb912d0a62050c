"""AdamW on one vector, and the learning rate of a run that must end on time.

Owns: the update rule and the schedule. Knows nothing of models.

    optimizer = AdamW(parameters); optimizer.step(grads, learning_rate(0.5, peak=1e-3))
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WARM_UP = 0.03  # of the run
FLOOR = 0.02  # of the peak, at the end


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up, then a half cosine.

    Args:
        progress: how much of the run is over, from 0 to 1: the larger of the share of its samples
            and the share of its time, so that it decays in full however busy the machine is.
    """
    if progress < WARM_UP:
        return peak * (progress + 1e-3) / (WARM_UP + 1e-3)
    done = min(1.0, (progress - WARM_UP) / (1 - WARM_UP))
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


class AdamW:
    """Decoupled weight decay, bias-corrected moments, gradients clipped by their norm."""

    def __init__(
        self,
        parameters: Tensor,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.01,
        max_norm: float = 1.0,
        eps: float = 1e-8,
    ) -> None:
        self.parameters = parameters
        self.first = torch.zeros_like(parameters)
        self.second = torch.zeros_like(parameters)
        self.steps = 0
        self._betas, self._eps = betas, eps
        self._weight_decay, self._max_norm = weight_decay, max_norm

    def step(self, grads: Tensor, rate: float) -> float:
        """Update in place; returns the norm of `grads` before clipping."""
        norm = float(grads.norm())
        if norm > self._max_norm:
            grads = grads * (self._max_norm / norm)
        self.steps += 1
        beta1, beta2 = self._betas
        self.first.lerp_(grads, 1 - beta1)
        self.second.mul_(beta2).addcmul_(grads, grads, value=1 - beta2)
        scale = math.sqrt(1 - beta2**self.steps)
        denominator = self.second.sqrt().div_(scale).add_(self._eps)
        self.parameters.mul_(1 - rate * self._weight_decay)
        self.parameters.addcdiv_(self.first, denominator, value=-rate / (1 - beta1**self.steps))
        return norm
