"""The command line of scripts/batch, which also chooses where engines run; only a run on Ray imports Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pipeline.batch.engines_runner import EnginesRunner
from pipeline.batch.errors import BatchError
from pipeline.batch.local_worker import LocalWorker, start_model
from pipeline.batch.output import Output
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Worker
from pipeline.batch.run_batch import BatchPlan, BatchResult, Budget, run_batch
from pipeline.batch.run_files import RunFiles
from pipeline.batch.table import Table
from pipeline.package.command_inputs import read_schema
from pipeline.paths import ROOT
from pipeline.weights.console import report_errors, say
from pipeline.weights.default_weights import ensure_weights
from pipeline.weights.digest import sha256
from serving.config import Settings
from tasks.errors import TaskError


def main(
    data: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="JSONL, CSV or Parquet: a file or a folder; also s3://… or gs://…"),
    ],
    out: Annotated[str, typer.Option(help="file of results; its ending says the format; also s3://… or gs://…")],
    local: Annotated[bool, typer.Option("--local", help="one engine in this process; the default")] = False,
    on_ray: Annotated[bool, typer.Option("--ray", help="engines in Ray actors, on this machine")] = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="engines on a Ray cluster; auto: that of this machine"),
    ] = None,
    engines: Annotated[
        int | None, typer.Option(min=1, help="on Ray; default: one on each GPU, or on each machine if there are none")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=COLUMN", help="column of an input; default: the column of its name"),
    ] = None,
    constants: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="an input that is the same in every row")
    ] = None,
    answer: Annotated[
        str, typer.Option(help="column of the answers; NAME_error, NAME_input_tokens, NAME_output_tokens come with it")
    ] = "answer",
    rows: Annotated[int | None, typer.Option("--budget-rows", min=1, help="stop after so many rows")] = None,
    tokens: Annotated[
        int | None, typer.Option("--budget-tokens", min=1, help="stop after so many tokens of prompts and answers")
    ] = None,
    minutes: Annotated[float | None, typer.Option("--budget-minutes", min=0.0, help="stop after this time")] = None,
) -> None:
    """Answer every row of a file with this package's model; rows keep their order. Repeat a command to continue it.

    The engine and its settings come from the environment: ENGINE=vllm, MAX_NUM_SEQS=64.
    """
    with report_errors(BatchError, TaskError, OSError):
        has_ray = on_ray or address is not None
        if local and has_ray:
            raise BatchError("--local runs the engine in this process, without Ray; leave out --ray and --address")
        if engines is not None and not has_ray:
            raise BatchError("--engines needs Ray; add --ray, or --address of a cluster")
        place = (address, engines) if has_ray else None
        files = RunFiles(data, out)
        files.fetch()
        result = _run(files, inputs or [], constants or [], answer, Budget(rows, tokens, minutes), place)
        if not result.num_left:
            files.remove_copies()
    _report(result, out)


def _run(
    files: RunFiles,
    inputs: list[str],
    constants: list[str],
    answer: str,
    budget: Budget,
    place: tuple[str | None, int | None] | None,
) -> BatchResult:
    """Run, with the engine in this process, or on Ray if there is a `place`: the cluster's address, and how many."""
    table = Table(files.data)
    survey = table.survey()
    row_inputs = RowInputs(read_schema(), tuple(survey.types), _sources(inputs), constants)
    output = Output(files.out, survey.types, answer)
    ensure_weights()
    os.chdir(ROOT)  # paths of the weights in the settings are relative to it
    settings = Settings()
    lock = sha256(settings.weights_lock)
    identity: dict[str, Any] = {
        "weights.lock": lock,
        "--input": row_inputs.sources,
        "--set": row_inputs.constants,
        "--answer": answer,
    }
    runners: list[EnginesRunner] = []

    def start(num_rows: int) -> EnginesRunner:
        workers: Sequence[Worker] = [LocalWorker(start_model, row_inputs)]
        if place is not None:
            from pipeline.batch.ray_cluster import connect, ray_workers

            address, engines = place
            connect(address)
            workers = ray_workers(engines, settings, lock, row_inputs)
        runners.append(EnginesRunner(workers, concurrency=settings.max_num_seqs, num_rows=num_rows))
        return runners[-1]

    try:
        return asyncio.run(run_batch(BatchPlan(table, survey, output, identity, files.publish), start, budget))
    finally:
        for runner in runners:
            runner.close()


def _sources(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise BatchError(f"--input {pair}: has no '='; write --input NAME=COLUMN")
    return {name: column for name, _, column in (pair.partition("=") for pair in pairs)}


def _report(result: BatchResult, out: str) -> None:
    say(f"{out}: {result.num_rows - result.num_left:,} of {result.num_rows:,} rows, {result.num_failed:,} failed now")
    if result.num_left:
        say(f"Stopped after {result.spent}; {result.num_left:,} rows are left. Repeat the command to continue.")
