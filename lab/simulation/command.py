"""The command line of scripts/plan --simulate."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lab.simulation.arrivals import ArrivalsError
from lab.simulation.check import compare
from lab.simulation.replica_plans import RATES, Question, as_json, plans
from lab.simulation.service_times import ServiceTimesError
from pipeline.weights.console import report_errors


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
    """Simulate replicas behind the door: how many hold a 99th percentile, with and without prefix routing."""
    console = Console(stderr=json_file == Path("-"), highlight=False)
    with report_errors(ServiceTimesError, ArrivalsError):
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
