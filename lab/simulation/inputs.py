"""What is simulated: when requests arrive and which have equal beginnings of prompts, and how long a replica takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BURST_SECONDS: Final = 10.0  # length of a burst, where the simulation is long enough for MIN_PERIODS
QUIET: Final = 0.5  # rate between bursts divided by the mean rate
MIN_PERIODS: Final = 4


class SimulationError(Exception):
    """A file of arrivals or a result of the benchmark cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in the order of their times.

    Args:
        times: seconds, [n] float64, ascending.
        prefixes: number of the beginning of each prompt, [n] int64.
    """

    times: NDArray[np.float64]
    prefixes: NDArray[np.int64]

    @property
    def rate(self) -> float:
        """Mean requests per second."""
        return len(self.times) / float(self.times[-1]) if len(self.times) else 0.0


def poisson(rng: np.random.Generator, rate: float, seconds: float) -> NDArray[np.float64]:
    """Times of a Poisson process of `rate` requests per second, [n] float64."""
    count = rng.poisson(rate * seconds)
    return np.sort(rng.uniform(0.0, seconds, count))


def bursty(rng: np.random.Generator, rate: float, seconds: float, burst: float) -> NDArray[np.float64]:
    """Times of a Poisson process whose rate switches between two values in fixed periods, [n] float64.

    In a burst, requests come at `burst` times the mean `rate` per second, else at half of it. The periods are whole and
    at least four, so that the mean rate is right in a short simulation too.
    """
    share = (1 - QUIET) / (burst - QUIET)  # of the time that is in a burst
    periods = max(MIN_PERIODS, round(seconds * share / BURST_SECONDS))
    period = seconds / periods
    times = []
    for start in np.arange(periods) * period:
        times.append(start + poisson(rng, rate * QUIET, period * (1 - share)))
        times.append(start + period * (1 - share) + poisson(rng, rate * burst, period * share))
    return np.concatenate(times)


def generate(rng: np.random.Generator, rate: float, seconds: float, *, burst: float, num_prefixes: int) -> Arrivals:
    """Arrivals, in bursts of `burst` times the mean rate per second if it is more than 1.

    Their beginnings of prompts have Zipf's distribution (the k-th has weight 1 / k).
    """
    times = poisson(rng, rate, seconds) if burst <= 1 else bursty(rng, rate, seconds, burst)
    weights = 1.0 / np.arange(1, num_prefixes + 1)
    return Arrivals(times, rng.choice(num_prefixes, len(times), p=weights / weights.sum()))


def read_arrivals(path: Path) -> Arrivals:
    """Recorded arrivals: JSON lines of {"at": seconds, "prefix": text}, where `prefix` may be left out.

    Raises:
        SimulationError: the file cannot be read, is empty, or a line has another format.
    """
    records: list[tuple[float, str]] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    record = json.loads(line)
                    records.append((float(record["at"]), str(record.get("prefix", number))))
    except OSError as error:
        raise SimulationError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SimulationError(f'{path}:{number}: a line is {{"at": seconds, "prefix": text}} ({error!r})') from error
    if not records:
        raise SimulationError(f"{path} has no arrivals; a line is {{'at': seconds, 'prefix': text}}")
    records.sort()
    numbers = {prefix: number for number, prefix in enumerate(dict.fromkeys(prefix for _, prefix in records))}
    times = np.array([at for at, _ in records])
    return Arrivals(times - times[0], np.array([numbers[prefix] for _, prefix in records]))


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
    """The times in the workloads `one-new`, `one-seen`, `load-8` and `load-32` of a result of scripts/dev/bench.

    Raises:
        SimulationError: the file cannot be read, or has no such workload of the engine.
    """
    try:
        runs = json.loads(path.read_text("utf-8"))["runs"]
    except (OSError, ValueError, KeyError) as error:
        raise SimulationError(f"{path} is no result of scripts/dev/bench --json: {error!r}") from error
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
        raise SimulationError(f"{path} has no workload {workload} of the engine {engine}; give another --engine")
    return np.array(seconds)
