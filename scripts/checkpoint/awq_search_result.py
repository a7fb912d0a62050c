"""What the search for AWQ scales found, and how it is applied, elementwise.

Owns: the scales that move difficulty from activations into weights, and the clip steps per group.
Knows nothing of the search, which depends on activations and is not reproducible across machines;
its result is small and kept, and applying it is exact.

    search = AwqSearchResult.plain(group_size=64); weight = search.clip(name, search.scale(name, weight))
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .tensors import Array

CLIP_STEPS = 20  # of AutoAWQ's grid: step i keeps 1 - i / 20 of a group's largest magnitude


@dataclass(frozen=True, slots=True)
class AwqSearchResult:
    """Scales and clips by layer name; a layer without an entry is left as it is.

    Args:
        group_size: weights that share a scale and a zero point.
        divisors: what the outputs of a layer are divided by: a norm, or the rows of a linear layer.
        multipliers: what the inputs of a linear layer are multiplied with; undoes a divisor before it.
        clip_steps: [N, K // g] uint8, a step of the grid for each group of a linear layer.
        fingerprint: of the checkpoint it was found on; None fits any.
    """

    group_size: int
    divisors: dict[str, Array] = field(default_factory=dict)
    multipliers: dict[str, Array] = field(default_factory=dict)
    clip_steps: dict[str, Array] = field(default_factory=dict)
    fingerprint: str | None = None

    @classmethod
    def plain(cls, group_size: int) -> AwqSearchResult:
        """Rounding to nearest, with nothing found and nothing applied."""
        return cls(group_size)

    def scale(self, layer: str, weight: Array) -> Array:
        """The weight of a norm [N] or a linear layer [N, K] with the scales folded in."""
        if layer in self.multipliers:
            weight = weight * self.multipliers[layer].astype(np.float32)
        if layer in self.divisors:
            divisor = self.divisors[layer].astype(np.float32)
            weight = weight / (divisor if weight.ndim == 1 else divisor[:, None])
        return weight

    def clip(self, layer: str, weight: Array) -> Array:
        """The (scaled) weight [N, K] with each group held to its share of its largest magnitude."""
        if layer not in self.clip_steps:
            return weight
        groups = weight.reshape(weight.shape[0], -1, self.group_size)
        kept = np.float32(1) - self.clip_steps[layer].astype(np.float32) / np.float32(CLIP_STEPS)
        limit = (np.abs(groups).max(axis=2) * kept)[:, :, None]
        return np.clip(groups, -limit, limit).reshape(weight.shape)
