"""How far merged weights are from the weights that the adapter was trained with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.weights.tensors import Array


@dataclass(slots=True)
class Sums:
    """Sums of squares over a tensor.

    Attributes:
        live: of the weights with which the adapter was trained: the base, rounded to NF4 if it was, plus the adapter.
        merged: of what is written minus those.
        plain: of what a merge without NF4 would write minus those; equal to `merged` without NF4.
    """

    live: float = 0.0
    merged: float = 0.0
    plain: float = 0.0

    @classmethod
    def of(cls, live: Array, merged: Array, plain: Array | None = None) -> Sums:
        """The sums of one block of weights."""
        error = _square(merged - live)
        return cls(_square(live), error, error if plain is None else _square(plain - live))

    def __iadd__(self, other: Sums) -> Sums:
        self.live += other.live
        self.merged += other.merged
        self.plain += other.plain
        return self

    def relative(self, *, nf4: bool) -> dict[str, float]:
        """The relative errors (Frobenius norms), by the way of merging."""
        live = self.live or 1.0
        merged, plain = (float(f"{math.sqrt(value / live):.6g}") for value in (self.merged, self.plain))
        return {"nf4_merge": merged, "plain_merge": plain} if nf4 else {"plain_merge": merged}


def differences(tensors: dict[str, Sums], *, nf4: bool) -> dict[str, Any]:
    """Relative errors of each tensor and of all together."""
    return {
        "live": "NF4 base and adapter" if nf4 else "base and adapter",
        "all": total(tensors.values()).relative(nf4=nf4),
        "tensors": {name: sums.relative(nf4=nf4) for name, sums in sorted(tensors.items())},
    }


def total(parts: Iterable[Sums]) -> Sums:
    """The sum of all parts."""
    result = Sums()
    for part in parts:
        result += part
    return result


def _square(array: Array) -> float:
    return float(np.vdot(array, array))
