"""What an adapter that is made of others is made of: method, weights, density and seed, all checked."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from serving.errors import AdapterError

_MAX_SEED: Final = 2**63 - 1


class Method(StrEnum):
    """How adapters are combined; all but `mean` have the names and the numbers of PEFT's `add_weighted_adapter`."""

    LINEAR = "linear"  # weighted sums of the factors
    CAT = "cat"  # factors side by side: exactly the weighted sum of the changes, ranks add up
    TIES = "ties"  # Yadav et al. 2023, "TIES-Merging: Resolving Interference When Merging Models"
    DARE_LINEAR = "dare_linear"  # Yu et al. 2023, "Language Models are Super Mario"
    DARE_TIES = "dare_ties"  # random pruning as in DARE, then signs as in TIES
    MEAN = "mean"  # weighted mean of the factors, for checkpoints of one training run

    @property
    def prunes(self) -> bool:
        """Whether only a part of the values is kept."""
        return self in (Method.TIES, Method.DARE_LINEAR, Method.DARE_TIES)

    @property
    def draws(self) -> bool:
        """Whether that part is random."""
        return self in (Method.DARE_LINEAR, Method.DARE_TIES)


@dataclass(frozen=True, slots=True)
class Combination:
    """A recipe for one adapter out of several.

    Args:
        method: one of `Method`, or its name.
        names: the names of the adapters, at least two.
        weights: one for each; negative ones subtract. `mean` divides them by their sum.
        density: part of the values that ties and dare keep, above 0 and up to 1; None for other methods.
        seed: the seed of dare's random numbers, None for 0; None for other methods.

    Raises:
        AdapterError: a value is wrong, or the method would ignore it.
    """

    method: Method
    names: tuple[str, ...]
    weights: tuple[float, ...]
    density: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.method not in list(Method):
            raise AdapterError(f"method: {self.method!r} is unknown; there are {', '.join(Method)}")
        object.__setattr__(self, "method", Method(self.method))
        if len(self.names) < 2 or len(set(self.names)) < len(self.names):
            raise AdapterError(f"{list(self.names)} are combined; give at least two, each once")
        if len(self.weights) != len(self.names):
            raise AdapterError(f"{len(self.weights)} weights for {len(self.names)} adapters; give one for each")
        self._check_weights()
        self._check_options()

    def _check_weights(self) -> None:
        for name, weight in zip(self.names, self.weights, strict=True):
            if not _is_number(weight):
                raise AdapterError(f"the weight of {name} is {weight!r}; it must be a number")
            if self.method is Method.MEAN and weight <= 0:
                raise AdapterError(f"the weight of {name} is {weight:g}; method mean needs weights above 0")

    def _check_options(self) -> None:
        if self.method.prunes and self.density is None:
            raise AdapterError(f"density is missing: the part of the values that method {self.method} keeps, up to 1")
        if self.density is not None and not (_is_number(self.density) and 0 < self.density <= 1):
            raise AdapterError(f"density: {self.density!r} must be above 0 and up to 1")
        if self.seed is not None and not (type(self.seed) is int and 0 <= self.seed <= _MAX_SEED):
            raise AdapterError(f"seed: {self.seed!r} must be a whole number of 0 to {_MAX_SEED}")
        for name, value, used in (
            ("density", self.density, self.method.prunes),
            ("seed", self.seed, self.method.draws),
        ):
            if value is not None and not used:
                raise AdapterError(f"{name}: {value} would be ignored by method {self.method}; remove it")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
