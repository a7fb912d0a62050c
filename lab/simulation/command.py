"""The command line of scripts/plan --simulate; it also compares one replica with latencies measured under its load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from lab.bench.protocol import arrival_times
from lab.simulation.capacity import RATES, Question, as_json, plans
from lab.simulation.fleet import Fleet, simulate
from lab.simulation.inputs import Arrivals, ServiceTimes, SimulationError, read_service_times
from pipeline.weights.console import report_errors

DRAWS: Final = 200  # simulations of one load, each with other service times
_PERCENTILES: Final = (50, 95)


def main(
    simulate: Annotated[Path, typer.Option(help="result of scripts/dev/bench --json, which has the service times")],
    p99: Annotated[
        float | None, typer.Option(help="limit of the 99th percentile of the latency, in seconds", min=0.001)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="instead: compare one replica with the workload open of the result")
    ] = False,
    engine: Annotated[str, typer.Option(help="its name in the result")] = "paged",
    rps: Annotated[
        list[float] | None, typer.Option(help="requests per second; repeatable; default 1, 100 and 10,000", min=0.001)
    ] = None,
    burst: Annotated[float, typer.Option(help="rate of bursts divided by the mean rate; 1: none", min=1.0)] = 1.0,
    prefixes: Annotated[int, typer.Option(help="different beginnings of prompts (column lists)", min=1)] = 1000,
    arrivals: Annotated[
        Path | None, typer.Option(help='recorded arrivals instead: JSON lines {"at": seconds, "prefix": text}')
    ] = None,
    cold_start: Annotated[
        float | None, typer.Option(help="replicas start on demand, in so many seconds; default: all run always", min=0)
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the plans to this file; - for stdout")] = None,
) -> None:
    """Simulate replicas behind the gateway: how many hold a 99th percentile, with and without prefix routing."""
    console = Console(stderr=json_file == Path("-"), highlight=False)
    with report_errors(SimulationError):
        if check:
            about: dict[str, Any] = {"compared": [asdict(one) for one in compare(simulate, engine, console)]}
        elif p99 is None:
            raise typer.BadParameter("give --p99 SECONDS, or --check")
        else:
            question = Question(simulate, engine, p99, tuple(rps or RATES), burst, prefixes, arrivals, cold_start)
            about = as_json(question, plans(question, console))
    if json_file is not None:
        text = json.dumps(about, indent=2)
        print(text) if json_file == Path("-") else json_file.write_text(text + "\n", "utf-8")


@dataclass(frozen=True, slots=True)
class Compared:
    """A percentile of the latency under one load. Times in seconds.

    Args:
        rate: requests per second.
        num_requests: the number of requests that were measured.
        percentile: 50 or 95.
        measured: the latency in the result of scripts/dev/bench.
        simulated: the median over the simulations.
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
        SimulationError: the result has no such workload of the engine, or no service times.
    """
    service = read_service_times(result, engine)
    runs = [run for run in json.loads(result.read_text("utf-8"))["runs"] if run["engine"] == engine]
    loads = [run for run in runs if run["workload"] == "open"]
    if not loads:
        raise SimulationError(f"{result} has no workload open of the engine {engine}; add it to --workloads")
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
        measured = float(np.percentile(latencies, percentile))
        simulated = np.percentile(np.stack(draws), percentile, axis=1)
        low, middle, high = (float(value) for value in np.percentile(simulated, (2.5, 50, 97.5)))
        yield Compared(rate, count, percentile, measured, middle, low, high)


def _table(engine: str, found: Sequence[Compared]) -> Table:
    table = Table(title=f"One replica ({engine}), latency in seconds")
    for heading in ("requests/s", "requests", "percentile", "measured", "simulated", "95 % of simulations"):
        table.add_column(heading, justify="right")
    for one in found:
        times = (f"{one.measured:.3f}", f"{one.simulated:.3f}", f"{one.low:.3f} to {one.high:.3f}")
        table.add_row(f"{one.rate:g}", str(one.num_requests), str(one.percentile), *times)
    return table
