"""Find figures that are slower than in an earlier result, beyond noise.

Medians of both results are compared. Noise is the variation of the median when requests are resampled (bootstrap, 99 %,
because many figures are compared). A change is reported if this interval of the ratio excludes 1 and the median has
changed by more than 3 %, since every machine is at least that noisy.

    changes(old_runs, new_runs)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.bench.measure import Run
from lab.bench.protocol import Reply
from lab.bench.summary import good, of

RESAMPLES = 2000
SMALLEST = 1.03  # smaller changes are not reported
MIN_REQUESTS = 3  # on each side
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one engine in one workload, as the ratio of new to old; above 1 is slower."""

    workload: str
    engine: str
    figure: str
    old_ms: float
    new_ms: float
    ratio: float
    low: float
    high: float

    @property
    def is_slower(self) -> bool:
        """Beyond the noise."""
        return self.low > 1 and self.ratio > SMALLEST

    @property
    def is_faster(self) -> bool:
        """Beyond the noise."""
        return self.high < 1 and self.ratio < 1 / SMALLEST


def changes(old: Sequence[Run], new: Sequence[Run]) -> list[Change]:
    """The changes of all figures that both results have, in the order of the new one."""
    keys = list(dict.fromkeys((run.workload, run.engine, run.variant) for run in new))
    return [change for key in keys for change in _changes(*key, old, new)]


def _changes(
    workload: str, engine: str, variant: float | None, old: Sequence[Run], new: Sequence[Run]
) -> Iterator[Change]:
    before, after = (good(run for run in of(runs, workload, engine) if run.variant == variant) for runs in (old, new))
    name = workload if variant is None else f"{workload} {variant:g}"
    for figure in ("ttft", "tpot", "e2e"):
        first, second = _samples(before, figure), _samples(after, figure)
        if min(len(first), len(second)) >= MIN_REQUESTS:
            low, high = ratio_interval(first, second)
            medians = float(np.median(first)), float(np.median(second))
            ratio = medians[1] / medians[0]
            yield Change(name, engine, figure, 1000 * medians[0], 1000 * medians[1], ratio, low, high)


def _samples(replies: Sequence[Reply], figure: str) -> Floats:
    values = (getattr(reply, figure) for reply in replies)
    return np.array([value for value in values if value])


def ratio_interval(old: Floats, new: Floats, seed: int = 0) -> tuple[float, float]:
    """The 99 % confidence interval of the ratio of the medians."""
    rng = np.random.default_rng(seed)
    medians = [np.median(rng.choice(values, size=(RESAMPLES, len(values))), axis=1) for values in (old, new)]
    low, high = np.percentile(medians[1] / medians[0], (0.5, 99.5))
    return float(low), float(high)
