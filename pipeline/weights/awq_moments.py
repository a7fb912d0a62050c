"""What the AWQ search finds from the second moments of a layer's inputs: clips, and moments for error feedback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pipeline.weights.awq_search_result import CLIP_STEPS

_NUM_CLIPS = CLIP_STEPS // 2  # AutoAWQ clips to no less than half of the largest magnitude


def input_moments(inputs: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The root mean squares [K] and the largest principal components of inputs [tokens, K], without centering.

    The components are right singular vectors of inputs / √tokens times their singular values, one in a row:
    [min(rank, tokens, K), K]. Their products U'U approximate the second moments.
    """
    torch.manual_seed(0)  # svd_lowrank begins with random vectors
    size = min(rank + 16, *inputs.shape)  # a few more than wanted are more accurate (Halko et al. 2011)
    _, values, vectors = torch.svd_lowrank(inputs, q=size, niter=6)
    root = inputs.shape[0] ** 0.5
    return torch.linalg.vector_norm(inputs, dim=0) / root, (vectors * (values / root)).T[:rank]


def best_clip_steps(groups: torch.Tensor, moments: torch.Tensor, rounded: Callable[[Any], Any]) -> torch.Tensor:
    """The clip step [N, G] with the least squared error of each group's output.

    Args:
        groups: a weight [N, G, g].
        moments: the second moments of each group's inputs [G, g, g].
        rounded: a function that rounds groups to four bits.
    """
    largest = groups.abs().amax(dim=2, keepdim=True)
    best = torch.full_like(largest[:, :, 0], torch.inf)
    steps = torch.zeros_like(best, dtype=torch.uint8)
    for step in range(_NUM_CLIPS):
        limit = largest * (1 - step / CLIP_STEPS)
        change = rounded(groups.clamp(-limit, limit)) - groups  # [N, G, g]
        error = (torch.einsum("ngi,gij->ngj", change, moments) * change).sum(dim=2)
        better = error < best
        best = torch.where(better, error, best)
        steps[better] = step
    return steps
