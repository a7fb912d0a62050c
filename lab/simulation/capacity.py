"""Finds how many replicas hold a 99th percentile of the latency, at several rates, with and without prefix routing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from lab.simulation.fleet import Fleet, Scaling, simulate
from lab.simulation.inputs import Arrivals, ServiceTimes, generate, read_arrivals, read_service_times

RATES: Final = (1.0, 100.0, 10_000.0)  # requests per second, if none is given
SECONDS: Final = 60.0  # simulated; longer for low rates, so that there are MIN_REQUESTS
_SEED: Final = 0
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
    kept = outcome.latencies[int(WARM_UP * len(outcome.latencies)) :]
    p50, p95, p99 = (float(seconds) for seconds in np.percentile(kept, (50, 95, 99)))
    running = outcome.replica_seconds / outcome.seconds if outcome.seconds else 0.0
    return Measured(fleet.replicas, p50, p95, p99, outcome.cached_share, running, len(arrivals.times))


def fewest_replicas(fleet: Fleet, service: ServiceTimes, arrivals: Arrivals, *, p99: float) -> Measured | None:
    """The smallest fleet like this one that holds `p99` seconds; None if no number of replicas does."""
    if float(np.percentile(service.seen, 99)) > p99:
        return None  # not even requests that are alone and find their prompt in the cache
    fewest = _lower_bound(fleet, service, arrivals)
    failed, held = fewest - 1, None
    for count in _growing(fewest):
        found = measure(replace(fleet, replicas=count), service, arrivals, _SEED)
        if found.p99 <= p99:
            held = found
            break
        if count > 4 * fewest + 64:  # nearly every request is alone on its replica
            return None
        failed = count
    while held is not None and held.replicas - failed > 1:
        count = (held.replicas + failed) // 2
        found = measure(replace(fleet, replicas=count), service, arrivals, _SEED)
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


@dataclass(frozen=True, slots=True)
class Question:
    """What is simulated.

    Args:
        result: a result of scripts/dev/bench --json, which has the service times.
        engine: its name in the result.
        p99: limit of the 99th percentile of the latency, in seconds.
        rates: requests per second.
        burst: rate of a burst divided by the mean rate; 1 for a Poisson process.
        num_prefixes: different beginnings of prompts.
        recorded: file of recorded arrivals, used instead of generated ones.
        cold_start: seconds in which a replica starts when requests wait; None if all run always.
    """

    result: Path
    engine: str
    p99: float
    rates: Sequence[float]
    burst: float
    num_prefixes: int
    recorded: Path | None = None
    cold_start: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer for one load; `found` is None if no number of replicas holds the limit."""

    rate: float
    routes_by_prefix: bool
    found: Measured | None


def plans(question: Question, console: Console) -> list[Plan]:
    """Simulate every rate with and without prefix routing, and print a table.

    Raises:
        SimulationError: the result has no service times of the engine, or the file of arrivals cannot be used.
    """
    service = read_service_times(question.result, question.engine)
    scaling = None if question.cold_start is None else Scaling(minimum=1, cold_start=question.cold_start)
    fleets = [Fleet(1, routes_by_prefix=routed, scaling=scaling) for routed in (False, True)]
    found = [
        Plan(
            arrivals.rate,
            fleet.routes_by_prefix,
            fewest_replicas(fleet, service, arrivals, p99=question.p99),
        )
        for arrivals in _loads(question)
        for fleet in fleets
    ]
    console.print(_table(question, service, found))
    return found


def as_json(question: Question, found: Sequence[Plan]) -> dict[str, Any]:
    """Question and answers, with unrounded numbers."""
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(question).items()}
    return {"simulation": asked, "plans": [asdict(plan) for plan in found]}


def _loads(question: Question) -> Iterator[Arrivals]:
    if question.recorded is not None:
        yield read_arrivals(question.recorded)
        return
    for rate in question.rates:
        rng = np.random.default_rng(_SEED)
        seconds = max(SECONDS, MIN_REQUESTS / rate)
        yield generate(rng, rate, seconds, burst=question.burst, num_prefixes=question.num_prefixes)


def _table(question: Question, service: ServiceTimes, found: Sequence[Plan]) -> Table:
    alone = f"{1e3 * service.new.mean():.0f} ms alone, {1e3 * service.seen.mean():.0f} with the prompt's start cached"
    table = Table(title=f"Fewest replicas with a p99 of at most {question.p99:g} s ({question.engine}: {alone})")
    for heading in ("requests/s", "prefix routing", "replicas", "running", "p50 s", "p95 s", "p99 s", "cached"):
        table.add_column(heading, justify="right")
    for plan in found:
        one = plan.found
        cells = ["none holds it"] if one is None else _cells(one)
        table.add_row(f"{plan.rate:,.4g}", "yes" if plan.routes_by_prefix else "no", *cells)
    return table


def _cells(one: Measured) -> list[str]:
    times = [f"{seconds:.3f}" for seconds in (one.p50, one.p95, one.p99)]
    return [f"{one.replicas:,}", f"{one.mean_running:,.1f}", *times, f"{one.cached_share:.0%}"]
