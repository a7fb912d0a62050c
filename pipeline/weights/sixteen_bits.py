"""Chooses the linear layers that stay in 16 bits: those whose outputs four bits change most.

search = leave_in_sixteen_bits(checkpoint, search, share=0.1)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from pipeline.weights.awq_checkpoint import linear_names
from pipeline.weights.awq_format import dequantize
from pipeline.weights.awq_search_result import AwqSearchResult
from pipeline.weights.console import byte_bar, say
from pipeline.weights.error_feedback import Feedback
from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import Array, CheckpointTensors

# Layers that share their inputs. The engines compute them as one, so they have the same bits.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
LINEAR_LAYERS = tuple(name for names in TOGETHER for name in names)


def leave_in_sixteen_bits(source: CheckpointTensors, search: AwqSearchResult, share: float) -> AwqSearchResult:
    """The search result with the worst groups of layers left in 16 bits; says which.

    Groups are taken from the largest error to the smallest, and one that is too large for the rest of the share is
    passed over. The error is that of a group's outputs by the search's moments of their inputs, as a share of the
    outputs' squares; where there are no moments, that of its weights.

    Args:
        source: the unquantized checkpoint.
        search: scales, clips and moments.
        share: how many of the weights of all linear layers may stay, 0 … 1; in a model of very few layers one of the
            smallest groups stays although it is more.

    Raises:
        CheckpointError: there are no such layers.
    """
    groups, sizes = _groups(source), _sizes(source)
    if not groups:
        raise CheckpointError("the checkpoint has no linear layers named model.layers.….q_proj and so on")
    total = sum(sizes.values())
    left = budget = max(int(share * total), min(sum(map(sizes.__getitem__, names)) for names in groups))
    errors = _errors(source, search, groups)
    chosen: list[str] = []
    for names in sorted(groups, key=lambda names: (-errors[names], names)):
        if (size := sum(map(sizes.__getitem__, names))) <= left:
            left -= size
            chosen += names
    shown = ", ".join(name.removeprefix("model.layers.") for name in chosen)
    say(f"In 16 bits stay {(budget - left) / total:.1%} of the linear weights, the worst first: {shown}")
    return replace(search, sixteen_bits=frozenset(chosen))


def _groups(source: CheckpointTensors) -> list[tuple[str, ...]]:
    """The linear layers that are computed together, by their names."""
    groups: dict[tuple[str, int], list[str]] = defaultdict(list)
    for linear in linear_names(source.specs()):
        block, _, name = linear.rpartition(".")
        groups[block, next(i for i, names in enumerate(TOGETHER) if name in names)].append(linear)
    return list(map(tuple, groups.values()))


def _sizes(source: CheckpointTensors) -> dict[str, int]:
    """The number of weights of each linear layer."""
    specs = source.specs()
    return {linear: prod(specs[f"{linear}.weight"].shape) for linear in linear_names(specs)}


def _errors(
    source: CheckpointTensors, search: AwqSearchResult, groups: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], float]:
    specs, errors = source.specs(), {}
    with byte_bar("Measuring", sum(specs[f"{one}.weight"].nbytes for names in groups for one in names)) as progress:
        for names in groups:
            changed = outputs = 0.0
            for linear in names:
                weight = search.scale(linear, source.load(f"{linear}.weight"))
                moments = search.feedback.get(linear)
                change = dequantize(search.round(linear, weight), search.group_size) - weight
                changed, outputs = changed + _squares(change, moments), outputs + _squares(weight, moments)
                progress(specs[f"{linear}.weight"].nbytes)
            errors[names] = changed / outputs if outputs else 0.0
    return errors


def _squares(weight: Array, moments: Feedback | None) -> float:
    """The sum of the outputs' mean squares: w H w' for each row w of a weight [N, K].

    H [K, K] are the second moments of the inputs, or the identity where they are not known.
    """
    if moments is None:
        return float(np.square(weight, dtype=np.float64).sum())
    spread = np.square(weight, dtype=np.float64).sum(axis=0) @ moments.diagonal
    return float(spread + np.square(weight @ moments.components.astype(np.float32).T, dtype=np.float64).sum())
