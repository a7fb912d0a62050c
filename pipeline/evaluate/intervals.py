"""Confidence intervals: Wilson's interval of a proportion, and the bootstrap.

wilson(430, 500)  ->  (0.827, 0.888)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Z = 1.959963984540054  # 95 % of a normal distribution lie within ± Z
RESAMPLES = 1000


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion (Wilson 1927); it is within [0, 1], and accurate near the ends too."""
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, Z * Z
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def share(passed: Sequence[bool]) -> dict[str, float]:
    """The proportion of `passed` as a result file has it: {"value", "low", "high"}; not of no items."""
    low, high = wilson(sum(passed), len(passed))
    return {"value": sum(passed) / len(passed), "low": low, "high": high}


def bootstrap(items: Sequence[Item], measure: Callable[[list[Item]], float], seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval (Efron 1979) of a measure that is not a proportion."""
    draw = random.Random(seed)
    values = sorted(measure(draw.choices(items, k=len(items))) for _ in range(RESAMPLES))
    return values[round(0.025 * (RESAMPLES - 1))], values[round(0.975 * (RESAMPLES - 1))]


def paired_difference(first: Sequence[bool], second: Sequence[bool]) -> tuple[float, tuple[float, float]]:
    """Proportion of `second` minus that of `first` on the same cases, with its bootstrap interval."""
    differences = [int(b) - int(a) for a, b in zip(first, second, strict=True)]
    return _mean(differences), bootstrap(differences, _mean)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
