"""What the search for AWQ scales found, and how it is applied, elementwise.

Owns: the scales that move difficulty from activations into weights, the clip steps per group, and
the file that keeps both. Knows nothing of the search, which depends on activations and is not
reproducible across machines; its result is small and committed, and applying it is exact.

    search = AwqSearchResult.plain(group_size=64); weight = search.clip(name, search.scale(name, weight))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .tensors import Array

CLIP_STEPS = 20  # of AutoAWQ's grid: step i keeps 1 - i / 20 of a group's largest magnitude


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """One vector of scales: outputs of `before` are divided by it, inputs of `after` multiplied.

    Args:
        before: name of a norm, or of a linear layer whose rows are the channels.
        after: names of the linear layers that read those channels.
        scales: [channels] fp16.
    """

    before: str
    after: tuple[str, ...]
    scales: Array


class AwqSearchResult:
    """Scales and clips by layer name; a layer without an entry is left as it is.

    Args:
        group_size: weights that share a scale and a zero point.
        scale_groups: found scales.
        clip_steps: [N, K // group_size] uint8, a step of the grid for each group of a linear layer.
        fingerprint: of the checkpoint it was found on; None fits any.
        made_with: versions of what found it, for readers.
    """

    def __init__(
        self,
        group_size: int,
        scale_groups: Sequence[ScaleGroup] = (),
        clip_steps: dict[str, Array] | None = None,
        fingerprint: str | None = None,
        made_with: Mapping[str, str] | None = None,
    ) -> None:
        self.group_size = group_size
        self.scale_groups = tuple(scale_groups)
        self.clip_steps = clip_steps or {}
        self.fingerprint = fingerprint
        self.made_with = dict(made_with or {})
        self._divisors = {group.before: group.scales.astype(np.float32) for group in scale_groups}
        self._multipliers = {
            name: group.scales.astype(np.float32) for group in scale_groups for name in group.after
        }

    @classmethod
    def plain(cls, group_size: int) -> AwqSearchResult:
        """Rounding to nearest, with nothing found and nothing applied."""
        return cls(group_size)

    def scale(self, layer: str, weight: Array) -> Array:
        """The weight of a norm [N] or a linear layer [N, K] with the scales folded in, fp32."""
        weight = weight.astype(np.float32, copy=False)
        if layer in self._multipliers:
            weight = weight * self._multipliers[layer]
        if layer in self._divisors:
            divisor = self._divisors[layer]
            weight = weight / (divisor if weight.ndim == 1 else divisor[:, None])
        return weight

    def clip(self, layer: str, weight: Array) -> Array:
        """The scaled weight [N, K] with each group held to its share of its largest magnitude."""
        if layer not in self.clip_steps:
            return weight
        groups = weight.reshape(weight.shape[0], -1, self.group_size)
        kept = np.float32(1) - self.clip_steps[layer].astype(np.float32) / np.float32(CLIP_STEPS)
        limit = (np.abs(groups).max(axis=2) * kept)[:, :, None]
        return np.clip(groups, -limit, limit).reshape(weight.shape)
