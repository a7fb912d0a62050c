"""The command line of scripts/bench.

Owns: options, the progress bar, and what is printed. The last line on stdout is a JSON object.
"""

from __future__ import annotations

import shlex
import signal
import sys
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scripts.benchmark.answers import compare_answers
from scripts.benchmark.batches import Batches
from scripts.benchmark.compare import changes
from scripts.benchmark.lineup import Lineup
from scripts.benchmark.machine import describe_checkout, describe_machine
from scripts.benchmark.measure import Bench
from scripts.benchmark.peers import DEFAULT, PEERS, Peer
from scripts.benchmark.questions import REQUESTS, Asker, read_teams
from scripts.benchmark.result import (
    ResultError,
    last_line,
    make_result,
    read_result,
    read_runs,
    write_result,
)
from scripts.benchmark.tables import answer_table, change_table, engine_table, ratio_table
from scripts.benchmark.weights import Form, WeightForms
from scripts.benchmark.workloads import STANDARD, Plan, Workload

ROOT = Path(__file__).resolve().parents[2]
app = typer.Typer(add_completion=False)
console = Console(stderr=True)  # progress and warnings
WORKLOADS = ",".join(STANDARD)
FOLDER = {"file_okay": False}


@app.command()
def bench(
    engines: Annotated[str, typer.Option(help=f"of {', '.join(PEERS)}")] = ",".join(DEFAULT),
    workloads: Annotated[str, typer.Option(help=f"of {', '.join(Workload)}, passes")] = f"{WORKLOADS},passes",
    rounds: Annotated[int | None, typer.Option(min=1, help="each is every workload, engines in turn")] = None,
    starts: Annotated[int, typer.Option(min=1, help="times that each engine is started")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="whether it works, in seconds an engine")] = False,
    users: Annotated[str | None, typer.Option(help="of the workload users, such as 1,3,9")] = None,
    per_user: Annotated[int | None, typer.Option(min=1, help="requests of each user")] = None,
    requests: Annotated[Path, typer.Option(help="JSONL of {cols, questions}")] = REQUESTS,
    evaluation: Annotated[Path | None, typer.Option(help="JSONL of {nlq, cols} to count passes on")] = None,
    limit: Annotated[int, typer.Option(min=1, help="requests of --evaluation")] = 500,
    weights: Annotated[Path, typer.Option(help="checkpoint that is served", **FOLDER)] = ROOT
    / "weights/honeycomb-nlq",
    unquantized: Annotated[
        Path | None, typer.Option(help="the same unquantized; made when not given", **FOLDER)
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the whole result here")] = None,
    plots: Annotated[Path | None, typer.Option(help="draw PNGs into this folder", **FOLDER)] = None,
    result_file: Annotated[Path | None, typer.Option("--result", help="run nothing, take this")] = None,
    compare: Annotated[Path | None, typer.Option(help="an earlier result: what got slower?")] = None,
) -> None:
    """Measure engines side by side: latency, throughput, passes, memory, time to ready."""
    try:
        if result_file is not None:
            result = read_result(result_file)
        else:
            plan = _plan(quick, rounds, users, per_user)
            chosen, measured, with_passes = _peers(engines), *_workloads(workloads, evaluation)
            teams = read_teams(evaluation)[:limit] if evaluation else []
            asker, forms = (
                Asker(weights),
                WeightForms(weights, unquantized=unquantized, cache=ROOT / "build/bench"),
            )
            batches = Batches(asker, read_teams(requests), plan, teams)
            result = _run(chosen, measured, with_passes, plan, starts, forms, asker, batches)
        _finish(result, json_file, plots, compare)
    except (ResultError, OSError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error


def _plan(quick: bool, rounds: int | None, users: str | None, per_user: int | None) -> Plan:
    plan = Plan.quick() if quick else Plan()
    return replace(
        plan,
        rounds=rounds or plan.rounds,
        users=tuple(int(n) for n in users.split(",")) if users else plan.users,
        per_user=per_user or plan.per_user,
    )


def _peers(names: str) -> list[Peer]:
    for name in names.split(","):
        if name not in PEERS:
            raise typer.BadParameter(f"no engine {name!r}; there are {', '.join(PEERS)}")
    return [PEERS[name] for name in dict.fromkeys(names.split(","))]


def _workloads(names: str, evaluation: Path | None) -> tuple[list[Workload], bool]:
    wanted = list(dict.fromkeys(names.split(",")))
    for name in wanted:
        if name not in (*Workload, "passes"):
            raise typer.BadParameter(f"no workload {name!r}; there are {', '.join(Workload)}, passes")
    if evaluation is not None and Workload.EVALUATION not in wanted:
        wanted.append(Workload.EVALUATION)
    if evaluation is None and Workload.EVALUATION in wanted:
        raise typer.BadParameter("the workload evaluation needs --evaluation FILE")
    return [Workload(name) for name in wanted if name != "passes"], "passes" in wanted


def _run(
    peers: list[Peer],
    workloads: list[Workload],
    with_passes: bool,
    plan: Plan,
    starts: int,
    forms: WeightForms,
    asker: Asker,
    batches: Batches,
) -> dict[str, Any]:
    """Measure; Ctrl-C leaves what there is."""
    about: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["scripts/bench", *sys.argv[1:]]),
        **describe_checkout(),
        "machine": describe_machine(),
        "weights": {"folder": forms.name, "sha256": forms.digest},
        "plan": asdict(plan),
        "interrupted": False,
    }
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the same as Ctrl-C
    with closing(Lineup(peers, forms, asker, ROOT / "build/bench/logs", _warn)) as lineup:
        bench = Bench(lineup, peers, batches, plan)
        try:
            with _progress() as bar:
                task = bar.add_task("", total=bench.num_stages(workloads, starts) + with_passes)

                def stage(name: str) -> None:
                    bar.update(task, description=name, advance=1)

                bench.run(workloads, starts, stage)
                if with_passes:
                    stage("passes")
                    about["passes"] = _measure_passes(forms)
        except KeyboardInterrupt:
            about["interrupted"] = True
            _warn("interrupted; what was measured so far follows")
    result = make_result(bench.runs, lineup.entries, about)
    result["answers"] = compare_answers(bench.runs, batches, lineup.entries)
    return result


def _measure_passes(forms: WeightForms) -> dict[str, Any] | None:
    from scripts.benchmark.passes import measure_in_process  # torch

    try:
        return measure_in_process(forms.path(Form.QUANTIZED))
    except OSError as error:
        _warn(f"passes: {error}")
        return None


def _finish(result: dict[str, Any], json_file: Path | None, plots: Path | None, compare: Path | None) -> None:
    told = Console(width=None if sys.stdout.isatty() else 150)
    told.print(engine_table(result))
    if result["ratios"]:
        told.print(ratio_table(result))
    if result["answers"]:
        told.print(answer_table(result["answers"]))
    if json_file is not None:
        write_result(result, json_file)
    if plots is not None:
        from scripts.benchmark.plots import draw_plots  # matplotlib: a second

        draw_plots(result, plots)
    if compare is not None:
        earlier = read_runs(read_result(compare))
        told.print(change_table(changes(earlier, read_runs(result))))
    print(last_line(result))


def _progress() -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, refresh_per_second=1)  # drawing takes time from the engines


def _warn(message: str) -> None:
    console.print(message, style="yellow", markup=False, soft_wrap=True)
