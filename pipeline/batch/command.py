"""The command line of scripts/batch."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.batch.budget import Budget
from pipeline.batch.errors import BatchError
from pipeline.batch.local_runner import LocalRunner
from pipeline.batch.output import Output
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.run_batch import BatchPlan, BatchResult, run_batch
from pipeline.batch.table import Table
from pipeline.package.command_inputs import read_schema
from pipeline.paths import ROOT
from pipeline.weights.console import report_errors, say
from pipeline.weights.default_weights import ensure_weights
from serving.config import Settings
from serving.predictor import TaskPredictor
from tasks.errors import TaskError


def main(
    data: Annotated[Path, typer.Argument(metavar="INPUT", help="JSONL, CSV or Parquet: a file, or a folder of files")],
    out: Annotated[Path, typer.Option(help="file of results; its ending says the format")],
    local: Annotated[bool, typer.Option("--local", help="one engine in this process; must be given")] = False,
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
        if not local:
            raise BatchError("only --local is there, which runs one engine in this process; add --local")
        result = _run(
            data.resolve(), out.resolve(), inputs or [], constants or [], answer, Budget(rows, tokens, minutes)
        )
    _report(result, out)


def _run(data: Path, out: Path, inputs: list[str], constants: list[str], answer: str, budget: Budget) -> BatchResult:
    table = Table(data)
    survey = table.survey()
    row_inputs = RowInputs(read_schema(), tuple(survey.types), _sources(inputs), constants)
    output = Output(out, survey.types, answer)
    ensure_weights()
    os.chdir(ROOT)  # paths of the weights in the settings are relative to it
    settings = Settings()
    identity: dict[str, Any] = {
        "weights.lock": hashlib.sha256(settings.weights_lock.read_bytes()).hexdigest(),
        "--input": row_inputs.sources,
        "--set": row_inputs.constants,
        "--answer": answer,
    }
    runners: list[LocalRunner] = []

    def start() -> LocalRunner:
        runners.append(LocalRunner(start_model, row_inputs, concurrency=settings.max_num_seqs))
        return runners[-1]

    try:
        return asyncio.run(run_batch(BatchPlan(table, survey, output, identity), start, budget))
    finally:
        for runner in runners:
            runner.close()


def start_model() -> TaskPredictor:
    """The package's model, as Cog's server sets it up."""
    model = TaskPredictor()
    model.setup()
    return model


def _sources(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise BatchError(f"--input {pair}: has no '='; write --input NAME=COLUMN")
    return {name: column for name, _, column in (pair.partition("=") for pair in pairs)}


def _report(result: BatchResult, out: Path) -> None:
    say(f"{out}: {result.num_rows - result.num_left:,} of {result.num_rows:,} rows, {result.num_failed:,} failed now")
    if result.num_left:
        say(f"Stopped after {result.spent}; {result.num_left:,} rows are left. Repeat the command to continue.")
