"""Combine the factors that several adapters have for one linear layer into one pair, as PEFT does.

Sums are float32. The change of a layer is scaling · b a. All methods but `cat` and `mean` weight both factors by the
root of weight · scaling, and combine the factors a and the factors b each for itself. So the result is not the weighted
sum of the changes: it has products of one adapter's b with another's a as well.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.adapters.combination import Combination, Method
from serving.errors import AdapterError


@dataclass(frozen=True, eq=False, slots=True)
class LowRank:
    """What an adapter adds to the weight of a linear layer: scaling · b a."""

    a: Tensor  # [rank, inputs], any float
    b: Tensor  # [outputs, rank], any float
    scaling: float

    def to(self, dtype: torch.dtype) -> LowRank:
        """The same, with factors of another type.

        Raises:
            AdapterError: a value does not fit the type.
        """
        a, b = self.a.to(dtype), self.b.to(dtype)
        if not (a.isfinite().all() and b.isfinite().all()):
            raise AdapterError(f"a combined value does not fit {dtype}; use smaller weights")
        return LowRank(a, b, self.scaling)


def combine_layer(layer: str, parts: Mapping[str, LowRank], combination: Combination) -> LowRank:
    """The combined change of one layer, in float32.

    Args:
        layer: its name, for errors and for the random numbers: these are the same whatever other layers there are.
        parts: the changes by adapter, of those adapters that change this layer.
        combination: the recipe.

    Raises:
        AdapterError: the changes have different shapes, or `mean` is used for adapters that are not of one run.
    """
    method = combination.method
    chosen = [
        (name, weight) for name, weight in zip(combination.names, combination.weights, strict=True) if name in parts
    ]
    _check_shapes(layer, {name: parts[name] for name, _ in chosen}, same_rank=method is not Method.CAT)
    changes, weights = [parts[name] for name, _ in chosen], [weight for _, weight in chosen]
    if method is Method.CAT:
        a = torch.cat([part.a.float() * weight * part.scaling for part, weight in zip(changes, weights, strict=True)])
        return LowRank(a, torch.cat([part.b.float() for part in changes], dim=1), 1.0)
    if method is Method.MEAN:
        return _mean(layer, changes, weights, combination)
    products = [weight * part.scaling for part, weight in zip(changes, weights, strict=True)]
    roots = [math.sqrt(abs(product)) for product in products]
    generator = torch.Generator().manual_seed(_seed(combination.seed or 0, layer))
    a = _sum([part.a for part in changes], list(map(math.copysign, roots, products)), combination, generator)
    return LowRank(a, _sum([part.b for part in changes], roots, combination, generator), 1.0)


def reduced(change: LowRank, rank: int) -> LowRank:
    """The nearest change of at most this rank (Eckart and Young 1936), in float32; the change itself if it has less."""
    if change.a.shape[0] <= rank:
        return change
    outputs, left = torch.linalg.qr(change.b.float())  # [outputs, r], [r, r]
    inputs, right = torch.linalg.qr(change.a.float().T)  # [inputs, r], [r, r]
    u, values, v = torch.linalg.svd(left @ right.T)
    root = values[:rank].sqrt()
    return LowRank(root[:, None] * v[:rank] @ inputs.T, outputs @ u[:, :rank] * root, change.scaling)


def _check_shapes(layer: str, parts: Mapping[str, LowRank], *, same_rank: bool) -> None:
    (first, one), *others = parts.items()
    for name, part in others:
        if (part.a.shape[1], part.b.shape[0]) != (one.a.shape[1], one.b.shape[0]):
            raise AdapterError(f"{first} and {name} have different shapes in {layer}; they belong to different bases")
        if same_rank and part.a.shape[0] != one.a.shape[0]:
            raise AdapterError(
                f"{first} has rank {one.a.shape[0]} in {layer}, {name} has {part.a.shape[0]}; "
                "only method cat combines different ranks"
            )


def _mean(layer: str, changes: Sequence[LowRank], weights: Sequence[float], combination: Combination) -> LowRank:
    """The weighted mean of both factors (Izmailov et al. 2018), which fits one scaling only."""
    scalings = {part.scaling for part in changes}
    if len(changes) < len(combination.names) or len(scalings) > 1:
        raise AdapterError(f"{layer} is not in all adapters with one scaling; method mean is for those of one run")
    shares = [weight / sum(weights) for weight in weights]
    a = _weighted(torch.stack([part.a.float() for part in changes]), shares).sum(0)
    b = _weighted(torch.stack([part.b.float() for part in changes]), shares).sum(0)
    return LowRank(a, b, scalings.pop())


def _sum(
    factors: Sequence[Tensor], weights: Sequence[float], combination: Combination, generator: torch.Generator
) -> Tensor:
    """One factor out of those of several adapters, all of one shape."""
    pruned = [factor.float() for factor in factors]
    if combination.density is not None and combination.density < 1:
        if combination.method.draws:
            pruned = [_drop(factor, combination.density, generator) for factor in pruned]
        else:
            pruned = [_keep_largest(factor, combination.density) for factor in pruned]
    stacked = torch.stack(pruned)
    if combination.method in (Method.LINEAR, Method.DARE_LINEAR):
        return _weighted(stacked, weights).sum(0)
    return _sum_of_majority(stacked, weights)


def _weighted(stacked: Tensor, weights: Sequence[float]) -> Tensor:
    """Each of the stacked matrices times its weight: [n, rows, columns] float32."""
    return stacked * torch.tensor(weights)[:, None, None]


def _keep_largest(factor: Tensor, density: float) -> Tensor:
    """Zero all but the values of largest magnitude."""
    mask = torch.zeros(factor.numel())
    mask[factor.abs().reshape(-1).topk(int(density * factor.numel())).indices] = 1
    return factor * mask.reshape(factor.shape)


def _drop(factor: Tensor, density: float, generator: torch.Generator) -> Tensor:
    """Zero values at random, and scale the rest so that the expectation stays."""
    mask = torch.bernoulli(torch.full(factor.shape, density), generator=generator)
    return factor * mask / density


def _sum_of_majority(stacked: Tensor, weights: Sequence[float]) -> Tensor:
    """TIES: each value is the mean over the adapters whose sign is that of the unweighted sum."""
    majority = torch.where(stacked.sum(0) >= 0, 1, -1)
    agrees = stacked.sign() == majority
    return (_weighted(stacked, weights) * agrees).sum(0) / agrees.sum(0).clamp(min=1)


def _seed(seed: int, layer: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {layer}".encode()).digest()[:8], "little")
