"""Compare the simulation of one replica with measured latencies under the same load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from lab.bench.protocol import arrival_times
from lab.simulation.arrivals import Arrivals
from lab.simulation.fleet import Fleet, simulate
from lab.simulation.service_times import ServiceTimes, ServiceTimesError, read_service_times

DRAWS: Final = 200  # simulations of one load, each with other service times
_PERCENTILES: Final = (50, 95)


@dataclass(frozen=True, slots=True)
class Compared:
    """A percentile of the latency under one load. Times in seconds.

    Args:
        rate: requests per second.
        num_requests: that were measured.
        percentile: 50 or 95.
        measured: by scripts/dev/bench.
        simulated: median over the simulations.
        low: 2.5 % of the simulations are below it.
        high: 2.5 % of the simulations are above it.
    """

    rate: float
    num_requests: int
    percentile: int
    measured: float
    simulated: float
    low: float
    high: float


def compare(result: Path, engine: str, console: Console) -> list[Compared]:
    """Simulate the workload `open` of a result of scripts/dev/bench with its own arrival times, and print a table.

    Raises:
        ServiceTimesError: the result has no such workload of the engine, or no service times.
    """
    service = read_service_times(result, engine)
    runs = [run for run in json.loads(result.read_text("utf-8"))["runs"] if run["engine"] == engine]
    loads = [run for run in runs if run["workload"] == "open"]
    if not loads:
        raise ServiceTimesError(f"{result} has no workload open of the engine {engine}; add it to --workloads")
    found = [one for run in loads for one in _compare(run, service)]
    console.print(_table(engine, found))
    return found


def _compare(run: Mapping[str, Any], service: ServiceTimes) -> Iterator[Compared]:
    latencies = np.array([reply["e2e"] for reply in run["replies"]])
    count, rate = len(latencies), float(run["variant"])
    # Each question of this workload has columns of its own.
    arrivals = Arrivals(np.array(arrival_times(count, rate)), np.arange(count))
    draws = [simulate(Fleet(1), service, arrivals, np.random.default_rng(seed)).latencies for seed in range(DRAWS)]
    for percentile in _PERCENTILES:
        simulated = np.percentile(np.stack(draws), percentile, axis=1)
        yield _compared(rate, count, percentile, float(np.percentile(latencies, percentile)), simulated)


def _compared(rate: float, count: int, percentile: int, measured: float, simulated: NDArray[np.float64]) -> Compared:
    low, middle, high = (float(value) for value in np.percentile(simulated, (2.5, 50, 97.5)))
    return Compared(rate, count, percentile, measured, middle, low, high)


def _table(engine: str, found: Sequence[Compared]) -> Table:
    table = Table(title=f"One replica ({engine}), latency in seconds")
    for heading in ("requests/s", "requests", "percentile", "measured", "simulated", "95 % of simulations"):
        table.add_column(heading, justify="right")
    for one in found:
        times = (f"{one.measured:.3f}", f"{one.simulated:.3f}", f"{one.low:.3f} to {one.high:.3f}")
        table.add_row(f"{one.rate:g}", str(one.num_requests), str(one.percentile), *times)
    return table
