"""Finds how many replicas hold a 99th percentile of the latency."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lab.simulation.arrivals import Arrivals
from lab.simulation.fleet import Fleet, Outcome, simulate
from lab.simulation.service_times import ServiceTimes

WARM_UP: Final = 0.1  # share of the requests, from the first, that percentiles leave out: the fleet starts empty
MIN_REQUESTS: Final = 5_000  # for a 99th percentile of 50 requests or so


@dataclass(frozen=True, slots=True)
class Measured:
    """One simulated fleet. Times in seconds; `mean_running`: replicas that ran, starting included, on average."""

    replicas: int
    p50: float
    p95: float
    p99: float
    cached_share: float
    mean_running: float
    num_requests: int


def measure(fleet: Fleet, service: ServiceTimes, arrivals: Arrivals, seed: int) -> Measured:
    """Simulate a fleet and describe what happened."""
    outcome = simulate(fleet, service, arrivals, np.random.default_rng(seed))
    p50, p95, p99 = percentiles(outcome)
    running = outcome.replica_seconds / outcome.seconds if outcome.seconds else 0.0
    return Measured(fleet.replicas, p50, p95, p99, outcome.cached_share, running, len(arrivals.times))


def percentiles(outcome: Outcome) -> tuple[float, float, float]:
    """50th, 95th and 99th percentile of the latency after the warm-up, in seconds."""
    kept = outcome.latencies[int(WARM_UP * len(outcome.latencies)) :]
    p50, p95, p99 = np.percentile(kept, (50, 95, 99))
    return float(p50), float(p95), float(p99)


def fewest_replicas(
    fleet: Fleet, service: ServiceTimes, arrivals: Arrivals, *, p99: float, seed: int = 0
) -> Measured | None:
    """The smallest fleet that holds `p99` seconds; None if no number of replicas does.

    Args:
        fleet: its number of replicas is replaced.
        service: measured times.
        arrivals: the load.
        p99: limit of the 99th percentile of the latency, in seconds.
        seed: of the times drawn; the same for every size.
    """
    if float(np.percentile(service.seen, 99)) > p99:
        return None  # not even requests that are alone and find their prompt in the cache
    fewest = _lower_bound(fleet, service, arrivals)
    failed, held = fewest - 1, None
    for count in _growing(fewest):
        found = measure(replace(fleet, replicas=count), service, arrivals, seed)
        if found.p99 <= p99:
            held = found
            break
        if count > 4 * fewest + 64:  # nearly every request is alone on its replica
            return None
        failed = count
    while held is not None and held.replicas - failed > 1:
        count = (held.replicas + failed) // 2
        found = measure(replace(fleet, replicas=count), service, arrivals, seed)
        if found.p99 <= p99:
            held = found
        else:
            failed = count
    return held


def _lower_bound(fleet: Fleet, service: ServiceTimes, arrivals: Arrivals) -> int:
    """Replicas that are busy all the time if every prompt is in the cache."""
    work = arrivals.rate * float(service.seen.mean()) / max(service.speeds(fleet.slots))
    return max(1, math.ceil(work))


def _growing(first: int) -> Iterator[int]:
    """Numbers that grow by a fifth, and by at least one."""
    count = first
    while True:
        yield count
        count = max(count + 1, math.ceil(1.2 * count))
