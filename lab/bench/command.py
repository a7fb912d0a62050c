"""The command line of scripts/dev/bench. The last line on stdout is a JSON object."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lab.bench.adapter_command import adapter_table, bench_adapters
from lab.bench.adapter_measures import PARTS, AdapterPlan
from lab.bench.asker import Asker
from lab.bench.figures import changes
from lab.bench.offline_command import RUNNERS, batch_table, bench_batch, read_rows
from lab.bench.offline_runners import NAMES, find_runner
from lab.bench.peers import DEFAULT, PEERS, Peer, WeightForms
from lab.bench.questions import QuestionError, evaluation_questions, measured_questions
from lab.bench.result import (
    ResultError,
    answer_table,
    change_table,
    engine_table,
    last_line,
    ratio_table,
    read_result,
    read_runs,
    write_result,
)
from lab.bench.session import Session
from lab.bench.workloads import STANDARD, Plan, Workload
from pipeline.paths import ROOT
from pipeline.weights.atomic import write_json
from pipeline.weights.default_weights import weights_or_default
from serving.engine import ENGINES
from serving.errors import ServingError
from tasks.errors import TaskError

app = typer.Typer(add_completion=False)
console = Console(stderr=True)  # progress and warnings
PASSES = "passes"  # of our model alone
WORKLOADS = ",".join((*STANDARD, PASSES))
ADAPTERS = "adapters"  # many adapters on one base: other weights than the other workloads
BATCH = "batch"  # whole commands that answer a file of rows
WITH_ADAPTERS = "paged,paged-plain,vllm"
FOLDER = {"file_okay": False}


@app.command()
def bench(
    engines: Annotated[str, typer.Option(help=f"comma-separated, from {', '.join(PEERS)}")] = ",".join(DEFAULT),
    workloads: Annotated[
        str, typer.Option(help=f"comma-separated, from {', '.join(Workload)}, {PASSES}; or {ADAPTERS} or {BATCH} alone")
    ] = WORKLOADS,
    rounds: Annotated[int | None, typer.Option(min=1, help="repetitions of all workloads")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="only check that everything works, in seconds for each engine")
    ] = False,
    users: Annotated[str | None, typer.Option(help="numbers of users of the workload users, such as 1,3,9")] = None,
    per_user: Annotated[int | None, typer.Option(min=1, help="requests of each user")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="limit of an answer; default 256")] = None,
    requests: Annotated[
        Path | None, typer.Option(help='JSONL of {"input": …}; for Honeycomb optional, with {cols, questions}')
    ] = None,
    evaluation: Annotated[
        Path | None, typer.Option(help='JSONL of {"input": …}, for Honeycomb {nlq, cols}, for counting passes')
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="number of requests from --evaluation, or of rows")] = 500,
    adapters: Annotated[
        Path | None, typer.Option(help=f"adapters.yaml for {ADAPTERS}; by default that of examples/adapters")
    ] = None,
    parts: Annotated[
        str, typer.Option(help=f"of the workload {ADAPTERS}: comma-separated, from {', '.join(PARTS)}")
    ] = ",".join(PARTS),
    asked: Annotated[
        int | None, typer.Option(min=1, help=f"requests in each measurement of a rate of {ADAPTERS}; default 512")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="folder of the checkpoint, or of the adapters' base; by default that of weights.lock", **FOLDER
        ),
    ] = None,
    unquantized: Annotated[
        Path | None, typer.Option(help="folder of the same checkpoint before quantization; made if not given", **FOLDER)
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="file for the whole result")] = None,
    plots: Annotated[Path | None, typer.Option(help="folder for plots", **FOLDER)] = None,
    result_file: Annotated[
        Path | None, typer.Option("--result", help="show this result file instead of running")
    ] = None,
    compare: Annotated[Path | None, typer.Option(help="an earlier result file to compare with")] = None,
) -> None:
    """Measure and compare engines: latency, throughput, passes, memory, time to ready."""
    try:
        if workloads == ADAPTERS:
            _bench_adapters(engines, weights, adapters, parts, asked, quick, rounds, json_file)
            return
        if workloads == BATCH:
            _bench_batch(engines, weights, unquantized, evaluation, limit, rounds, json_file)
            return
        if result_file is not None:
            result = read_result(result_file)
        else:
            chosen, plan = _peers(engines), _plan(quick, rounds, users, per_user, max_tokens)
            measured = _workloads(workloads, evaluation)
            folder = weights_or_default(weights)
            asker = Asker(folder)
            result = Session(
                peers=chosen,
                workloads=[Workload(name) for name in measured if name != PASSES],
                with_passes=PASSES in measured,
                plan=plan,
                forms=WeightForms(folder, unquantized=unquantized, cache=ROOT / "build/bench"),
                asker=asker,
                questions=measured_questions(folder, asker, requests),
                evaluation=evaluation_questions(folder, asker, evaluation, limit) if evaluation else None,
                say=_say,
            ).run()
        _finish(result, json_file, plots, compare)
    except (QuestionError, ResultError, ServingError, TaskError, OSError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error


def _bench_adapters(
    engines: str,
    base: Path | None,
    adapters: Path | None,
    parts: str,
    asked: int | None,
    quick: bool,
    rounds: int | None,
    json_file: Path | None,
) -> None:
    peers = _peers(WITH_ADAPTERS if engines == ",".join(DEFAULT) else engines)
    if other := [peer.name for peer in peers if not _loads_adapters(peer)]:
        raise typer.BadParameter(f"{other[0]} has no adapters here; give --engines {WITH_ADAPTERS}")
    wanted = tuple(dict.fromkeys(parts.split(",")))
    if unknown := [part for part in wanted if part not in PARTS]:
        raise typer.BadParameter(f"unknown part {unknown[0]!r}; known are {', '.join(PARTS)}")
    plan = AdapterPlan.quick() if quick else AdapterPlan()
    plan = replace(plan, parts=wanted, rounds=rounds or plan.rounds, asked=asked or plan.asked)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handled like Ctrl-C

    keep: Callable[[Mapping[str, Any]], None] = partial(write_json, json_file) if json_file else lambda result: None
    result = bench_adapters(peers, base, adapters, plan, _say, keep)
    _show(result, adapter_table(result), json_file)


def _loads_adapters(peer: Peer) -> bool:
    engine = ENGINES.get(str(peer.engine))
    return engine is not None and engine.loads_adapters


def _bench_batch(
    engines: str,
    weights: Path | None,
    unquantized: Path | None,
    rows: Path | None,
    limit: int,
    rounds: int | None,
    json_file: Path | None,
) -> None:
    folder = weights_or_default(weights)
    asker, forms = Asker(folder), WeightForms(folder, unquantized=unquantized, cache=ROOT / "build/bench")
    runners = {}
    for name in dict.fromkeys((RUNNERS if engines == ",".join(DEFAULT) else engines).split(",")):
        if (runner := find_runner(name, forms, asker)) is None:
            raise typer.BadParameter(f"{name!r} answers no rows here; give some of {', '.join(NAMES)}")
        runners[name] = runner
    result = bench_batch(runners, read_rows(folder, asker, rows, limit), forms, asker, rounds or 1, _say)
    _show(result, batch_table(result), json_file)


def _show(result: Mapping[str, Any], table: Table, json_file: Path | None) -> None:
    _stdout().print(table)
    if json_file is not None:
        write_json(json_file, result)
    print(json.dumps(result["engines"], ensure_ascii=False))


def _stdout() -> Console:
    return Console(width=None if sys.stdout.isatty() else 150)


def _plan(quick: bool, rounds: int | None, users: str | None, per_user: int | None, max_tokens: int | None) -> Plan:
    plan = Plan.quick() if quick else Plan()
    return replace(
        plan,
        rounds=rounds or plan.rounds,
        users=tuple(int(n) for n in users.split(",")) if users else plan.users,
        per_user=per_user or plan.per_user,
        max_tokens=max_tokens or plan.max_tokens,
    )


def _peers(names: str) -> list[Peer]:
    for name in names.split(","):
        if name not in PEERS:
            raise typer.BadParameter(f"unknown engine {name!r}; known are {', '.join(PEERS)}")
    return [PEERS[name] for name in dict.fromkeys(names.split(","))]


def _workloads(names: str, evaluation: Path | None) -> list[str]:
    wanted = list(dict.fromkeys(names.split(",")))
    for name in wanted:
        if name not in (*Workload, PASSES):
            raise typer.BadParameter(f"unknown workload {name!r}; known are {', '.join(Workload)}, {PASSES}")
    if evaluation is not None and Workload.EVALUATION not in wanted:
        wanted.append(Workload.EVALUATION)
    if evaluation is None and Workload.EVALUATION in wanted:
        raise typer.BadParameter("the workload evaluation needs --evaluation FILE")
    return wanted


def _finish(result: dict[str, Any], json_file: Path | None, plots: Path | None, compare: Path | None) -> None:
    stdout = _stdout()
    stdout.print(engine_table(result))
    if result["ratios"]:
        stdout.print(ratio_table(result))
    if result["answers"]:
        stdout.print(answer_table(result["answers"]))
    if json_file is not None:
        write_result(result, json_file)
    if plots is not None:
        from lab.bench.plots import draw_plots  # imports matplotlib, which takes a second

        draw_plots(result, plots)
    if compare is not None:
        earlier = read_runs(read_result(compare))
        stdout.print(change_table(changes(earlier, read_runs(result))))
    print(last_line(result))


def _say(message: str) -> None:
    console.print(message, style="yellow", markup=False, soft_wrap=True)
