"""Four-bit rounding inside training: the model learns as the weights that will be served.

Owns: what `scripts/build_weights` does to one linear layer, in torch, and undone where it is only a
change of scale between layers. Rounding has no useful gradient, so the layer passes its own straight
through (Bengio et al. 2013, arXiv:1308.3432; quantization-aware training as in Jacob et al. 2018,
arXiv:1712.05877). Knows nothing of LoRA.

    rounding = layer_rounding(load_search_result(path), "model.layers.0.mlp.up_proj")
    served = rounding(merged)   # the weight that the packed one stands for
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scripts.checkpoint.awq_format import MAX_LEVEL
from scripts.checkpoint.awq_search_result import CLIP_STEPS, AwqSearchResult

_SMALLEST_SCALE = 2.0**-24  # as awq_format: the smallest of fp16


@dataclass(frozen=True, slots=True)
class LayerRounding:
    """Scale, clip, round and scale back a weight [N, K].

    Args:
        factors: [N, K] or what broadcasts to it, fp32: AWQ's scales of this layer's inputs over those of
            its outputs; None where it has none.
        kept: [N, K // group_size, 1] fp32, the share of a group's largest magnitude that is not clipped.
    """

    group_size: int
    factors: Tensor | None
    kept: Tensor | None

    def __call__(self, weight: Tensor) -> Tensor:
        """The weight as the packed one acts on unscaled inputs: fp32, same shape and device."""
        scaled = weight if self.factors is None else weight * self.factors
        groups = scaled.view(weight.shape[0], -1, self.group_size)
        if self.kept is not None:
            limit = groups.abs().amax(dim=2, keepdim=True).mul_(self.kept)
            groups = torch.clamp(groups, -limit, limit)
        rounded = _round(groups).view(weight.shape)
        return rounded if self.factors is None else rounded.div_(self.factors)

    def to(self, device: torch.device) -> LayerRounding:
        """The same on another device."""
        factors, kept = (t if t is None else t.to(device) for t in (self.factors, self.kept))
        return LayerRounding(self.group_size, factors, kept)


def layer_rounding(search: AwqSearchResult, layer: str) -> LayerRounding:
    """What the search result does to a linear layer, by the name it has in the checkpoint."""
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
    """[N, G, g] to four bits a number and back, as `awq_format.quantize` then `dequantize`."""
    lowest = groups.amin(dim=2, keepdim=True).clamp_(max=0)  # zero must stay representable
    highest = groups.amax(dim=2, keepdim=True).clamp_(min=0)
    scales = ((highest - lowest) / MAX_LEVEL).clamp_(min=_SMALLEST_SCALE).half().float()
    zeros = (-lowest / scales).round_().clamp_(0, MAX_LEVEL)
    levels = (groups / scales).round_().add_(zeros).clamp_(0, MAX_LEVEL)
    return levels.sub_(zeros).mul_(scales)
