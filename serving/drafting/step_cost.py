"""What one more row costs in a step of the model, which decides how many drafts are worth it.

cost = MeasuredCost(prior=LinearCost(0.06))
cost.add(rows=24, seconds=0.051)
cost.of_one_row(24)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

_MEMORY = 32.0  # steps after which a size's mean time is half forgotten, roughly
_PRIOR_WEIGHT = 1.0  # a few steps of clearly different sizes outweigh the prior
_OUTLIER = 3.0  # a step that takes longer than this multiple of the mean was interrupted
_MIN_SHARE = 0.002  # drafts take time to find, so that even rows that cost the model nothing are not free


class StepCost(Protocol):
    """The cost of steps of one model on one machine."""

    def of_one_row(self, rows: float) -> float:
        """Cost of one more row in a step with `rows` rows, relative to the cost of that step."""
        ...


@dataclass(frozen=True)
class LinearCost:
    """A step with R rows costs 1 + `row_cost` R."""

    row_cost: float

    def of_one_row(self, rows: float) -> float:
        """See `StepCost`."""
        return self.row_cost / (1.0 + self.row_cost * rows)


@dataclass
class _Size:
    """Mean rows and seconds of steps of similar size."""

    count: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        if self.count >= 4:
            seconds = min(seconds, _OUTLIER * self.seconds)
        self.count = min(self.count + 1.0, _MEMORY)
        self.rows += (rows - self.rows) / self.count
        self.seconds += (seconds - self.seconds) / self.count


class MeasuredCost:
    """The cost as measured so far: a line through the mean times of step sizes, of which near ones count more.

    Means of sizes that no longer occur are kept, so that the slope stays known while all steps have one size.

    Args:
        prior: assumed until steps of different sizes were measured.
    """

    def __init__(self, prior: StepCost) -> None:
        self._prior = prior
        self._sizes: dict[int, _Size] = {}  # by half powers of two

    def add(self, *, rows: int, seconds: float) -> None:
        """Count a step that computed `rows` rows, none of them of a prompt."""
        self._sizes.setdefault(round(2 * math.log2(rows)), _Size()).add(rows, seconds)

    def of_one_row(self, rows: float) -> float:
        """See `StepCost`; never more than in proportion, which is 1 / `rows`."""
        rows = max(rows, 1.0)
        prior = self._prior.of_one_row(rows)
        # x: distance in rows, relative to `rows`; so the slope is the cost of `rows` more rows.
        points = [(self._weight(size, rows), size.rows / rows - 1.0, size.seconds) for size in self._sizes.values()]
        total = sum(weight for weight, _, _ in points)
        if total == 0:
            return prior
        mean_x = sum(weight * x for weight, x, _ in points) / total
        mean_y = sum(weight * y for weight, _, y in points) / total
        covariance = sum(weight * (x - mean_x) * (y - mean_y) for weight, x, y in points)
        variance = sum(weight * (x - mean_x) ** 2 for weight, x, _ in points)
        slope = (covariance + _PRIOR_WEIGHT * mean_y * prior * rows) / (variance + _PRIOR_WEIGHT)
        seconds = max(mean_y - slope * mean_x, 0.1 * mean_y)  # of a step with `rows` rows
        return min(max(slope / seconds / rows, _MIN_SHARE), 1.0 / rows)

    @staticmethod
    def _weight(size: _Size, rows: float) -> float:
        return float(size.count * 2.0 ** -abs(math.log2(size.rows / rows)))
