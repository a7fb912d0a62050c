"""How long a replica takes for a request, from a result of scripts/dev/bench."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ServiceTimesError(Exception):
    """A result file has no service times of the engine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Measured times of single requests, and how much faster a replica is with many at once.

    Args:
        new: seconds of requests alone on a replica whose prompt begins as none before, [n] float64.
        seen: seconds where the beginning of the prompt is in the KV cache, [m] float64.
        speedup: throughput with n requests at once, divided by that with one, by n. Interpolated linearly.
    """

    new: NDArray[np.float64]
    seen: NDArray[np.float64]
    speedup: Mapping[int, float]

    def speeds(self, slots: int) -> list[float]:
        """Speedup with 0 to `slots` requests at once."""
        known = sorted(self.speedup)
        found = np.interp(np.arange(slots + 1), known, [self.speedup[n] for n in known])
        return [float(speed) for speed in found]


def read_service_times(path: Path, engine: str) -> ServiceTimes:
    """From the workloads `one-new`, `one-seen`, `load-8` and `load-32` of a result of scripts/dev/bench.

    Raises:
        ServiceTimesError: the file cannot be read, or has no such workload of the engine.
    """
    try:
        runs = json.loads(path.read_text("utf-8"))["runs"]
    except (OSError, ValueError, KeyError) as error:
        raise ServiceTimesError(f"{path} is no result of scripts/dev/bench --json: {error!r}") from error
    mine = [run for run in runs if run["engine"] == engine and run["variant"] is None]
    new, seen = (_alone(path, mine, workload, engine) for workload in ("one-new", "one-seen"))
    speedup = {1: 1.0}
    for run in mine:
        if run["workload"].startswith("load-") and run["wall"]:
            users = run["concurrency"]
            rates = [len(one["replies"]) / one["wall"] for one in mine if one["workload"] == run["workload"]]
            speedup[users] = max(1.0, float(np.mean(rates) * new.mean()))
    return ServiceTimes(new, seen, speedup)


def _alone(path: Path, runs: Sequence[Mapping[str, Any]], workload: str, engine: str) -> NDArray[np.float64]:
    seconds = [reply["e2e"] for run in runs if run["workload"] == workload for reply in run["replies"]]
    if not seconds:
        raise ServiceTimesError(f"{path} has no workload {workload} of the engine {engine}; give another --engine")
    return np.array(seconds)
