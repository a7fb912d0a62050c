"""The result of the AWQ search, and its exact elementwise application.

The search itself depends on activations and is not reproducible across machines, so its small result is committed.

    weight = search.clip(name, search.scale(name, weight))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .error_feedback import Feedback
from .tensors import Array

CLIP_STEPS = 20  # AutoAWQ's grid: step i clips to 1 - i / 20 of a group's largest magnitude


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """A vector of scales that divides the outputs of `before` and multiplies the input weights of `after`.

    Args:
        before: name of a norm, or of a linear layer whose rows are the channels.
        after: names of the linear layers that read those channels.
        scales: [channels] fp16.
    """

    before: str
    after: tuple[str, ...]
    scales: Array


class AwqSearchResult:
    """Scales and clips by layer name; layers without an entry are not changed.

    Args:
        group_size: weights that share a scale and a zero point.
        scale_groups: the scales.
        clip_steps: for each linear layer [N, K // group_size] uint8, steps of the grid.
        fingerprint: of the checkpoint that was searched; None fits any.
        made_with: versions of the packages that searched, for information.
        feedback: second moments of layers' inputs; the weights of other layers are rounded to nearest.
    """

    def __init__(
        self,
        group_size: int,
        scale_groups: Sequence[ScaleGroup] = (),
        clip_steps: dict[str, Array] | None = None,
        fingerprint: str | None = None,
        made_with: Mapping[str, str] | None = None,
        feedback: Sequence[Feedback] = (),
    ) -> None:
        self.group_size = group_size
        self.scale_groups = tuple(scale_groups)
        self.clip_steps = clip_steps or {}
        self.fingerprint = fingerprint
        self.made_with = dict(made_with or {})
        self.feedback_groups = tuple(feedback)
        self.feedback = {layer: group for group in self.feedback_groups for layer in group.layers}
        self._divisors = {group.before: group.scales.astype(np.float32) for group in scale_groups}
        self._multipliers = {name: group.scales.astype(np.float32) for group in scale_groups for name in group.after}

    def for_checkpoint(self, fingerprint: str) -> AwqSearchResult:
        """The same result with another fingerprint."""
        return AwqSearchResult(
            self.group_size, self.scale_groups, self.clip_steps, fingerprint, self.made_with, self.feedback_groups
        )

    def without_feedback(self) -> AwqSearchResult:
        """The same scales and clips; weights are rounded to nearest."""
        return AwqSearchResult(self.group_size, self.scale_groups, self.clip_steps, self.fingerprint, self.made_with)

    @classmethod
    def without_search(cls, group_size: int) -> AwqSearchResult:
        """An empty result: weights are rounded to nearest, without scales and clips."""
        return cls(group_size)

    def scale(self, layer: str, weight: Array) -> Array:
        """The weight of a norm [N] or a linear layer [N, K] with the scales applied, in fp32."""
        weight = weight.astype(np.float32, copy=False)
        if layer in self._multipliers:
            weight = weight * self._multipliers[layer]
        if layer in self._divisors:
            divisor = self._divisors[layer]
            weight = weight / (divisor if weight.ndim == 1 else divisor[:, None])
        return weight

    def scale_bias(self, layer: str, bias: Array) -> Array:
        """The bias [N] of a linear layer in fp32, scaled like the layer's outputs."""
        bias = bias.astype(np.float32, copy=False)
        return bias / self._divisors[layer] if layer in self._divisors else bias

    def clip(self, layer: str, weight: Array) -> Array:
        """The scaled weight [N, K] with each group clipped to a fraction of its largest magnitude."""
        if layer not in self.clip_steps:
            return weight
        groups = weight.reshape(weight.shape[0], -1, self.group_size)
        kept = np.float32(1) - self.clip_steps[layer].astype(np.float32) / np.float32(CLIP_STEPS)
        limit = (np.abs(groups).max(axis=2) * kept)[:, :, None]
        return np.clip(groups, -limit, limit).reshape(weight.shape)
