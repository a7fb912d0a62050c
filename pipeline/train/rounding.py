"""Four-bit rounding of weights during training, so that the model is trained with the weights that are served.

This is the rounding of `scripts/build_weights` in torch, without error feedback (`pipeline/weights/error_feedback.py`)
and without the scales that cancel between layers. Rounding has no useful gradient, so gradients pass straight through
it (Bengio et al. 2013, arXiv:1308.3432; quantization-aware training as in Jacob et al. 2018, arXiv:1712.05877).

    rounding = layer_rounding(load_search_result(path), "model.layers.0.mlp.up_proj")
    served = rounding(merged)  # the dequantized weight
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.weights.awq_format import MAX_LEVEL
from pipeline.weights.awq_search_result import CLIP_STEPS, AwqSearchResult

_SMALLEST_SCALE = 2.0**-24  # the smallest fp16 number, as in awq_format


@dataclass(frozen=True, slots=True)
class LayerRounding:
    """Scales, clips, rounds and rescales a weight [N, K].

    Args:
        group_size: weights that share a scale.
        factors: fp32, broadcastable to [N, K]: AWQ's scales of the inputs divided by those of the outputs; None if
            there are none.
        kept: [N, K // group_size, 1] fp32: the limit of a group as a fraction of its largest magnitude; None if groups
            are not clipped.
    """

    group_size: int
    factors: Tensor | None
    kept: Tensor | None

    def __call__(self, weight: Tensor) -> Tensor:
        """The weight after rounding, for unscaled inputs: fp32, with the same shape and device."""
        scaled = weight if self.factors is None else weight * self.factors
        groups = scaled.view(weight.shape[0], -1, self.group_size)
        if self.kept is not None:
            limit = groups.abs().amax(dim=2, keepdim=True).mul_(self.kept)
            groups = torch.clamp(groups, -limit, limit)
        rounded = _round(groups).view(weight.shape)
        return rounded if self.factors is None else rounded.div_(self.factors)

    def to(self, device: torch.device) -> LayerRounding:
        """A copy on another device."""
        factors, kept = (t if t is None else t.to(device) for t in (self.factors, self.kept))
        return LayerRounding(self.group_size, factors, kept)


def layer_rounding(search: AwqSearchResult, layer: str) -> LayerRounding:
    """The rounding of a linear layer, by its name in the checkpoint."""
    factors: Tensor | None = None
    kept: Tensor | None = None
    for group in search.scale_groups:
        scales = torch.from_numpy(group.scales.astype(np.float32))
        if layer in group.after:
            factors = scales[None, :] * (1 if factors is None else factors)
        if layer == group.before:
            factors = (1 if factors is None else factors) / scales[:, None]
    if layer in search.clip_steps:
        steps = torch.from_numpy(search.clip_steps[layer].astype(np.float32))
        kept = (1 - steps / CLIP_STEPS)[:, :, None]
    return LayerRounding(search.group_size, factors, kept)


def _round(groups: Tensor) -> Tensor:
    """Quantize [N, G, g] to four bits and dequantize, like `awq_format.quantize` and `dequantize`."""
    lowest = groups.amin(dim=2, keepdim=True).clamp_(max=0)  # zero must stay representable
    highest = groups.amax(dim=2, keepdim=True).clamp_(min=0)
    scales = ((highest - lowest) / MAX_LEVEL).clamp_(min=_SMALLEST_SCALE).half().float()
    zeros = (-lowest / scales).round_().clamp_(0, MAX_LEVEL)
    levels: Tensor = (groups / scales).round_().add_(zeros).clamp_(0, MAX_LEVEL)
    return levels.sub_(zeros).mul_(scales)
