"""The command line of scripts/prepare."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from pipeline.package.errors import PackageError
from pipeline.package.task_choice import (
    ExamplesFile,
    SchemaFile,
    System,
    TaskChoice,
    TaskFileOption,
    TaskName,
    TemplateFile,
)
from pipeline.prepare.errors import PrepareError, PrepareRefusedError
from pipeline.prepare.options import DRAFTER, PrepareOptions, option_words
from pipeline.prepare.record import StepRecord, find_record
from pipeline.prepare.run import planned, prepare, work_path
from pipeline.weights.bases import BASES
from pipeline.weights.console import INTERRUPTED, report_errors, say

_FILE: Final[dict[str, Any]] = {"exists": True, "dir_okay": False}
REFUSED: Final = 3  # the exit code where the comparison refuses what was made
_COLUMNS: Final = ("step", "wall", "processor", "peak memory", "written", "files")


def main(
    base: Annotated[str, typer.Option(help=f"hf://ORG/MODEL@REVISION, https://…/, a folder, {', '.join(BASES)}")],
    out: Annotated[Path, typer.Option(help="the new folder of the checkpoint, such as weights/NAME")],
    adapter: Annotated[str | None, typer.Option(help="hf://…, https://…/ or a folder; none serves the base")] = None,
    task: TaskName = None,
    schema: SchemaFile = None,
    template: TemplateFile = None,
    system: System = None,
    examples: ExamplesFile = None,
    task_file: TaskFileOption = None,
    calibration: Annotated[
        Path | None, typer.Option(help='JSONL of {"text": prompt and answer} for the AWQ search', **_FILE)
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(
            help='JSONL of {"input", "output"} that the comparison scores and a draft model learns from; without '
            "--calibration also for the search",
            **_FILE,
        ),
    ] = None,
    reuse_search: Annotated[
        Path | None, typer.Option(help="the result of an AWQ search, with which the adapter was trained", **_FILE)
    ] = None,
    unquantized: Annotated[bool, typer.Option("--unquantized", help="serve the weights unquantized")] = False,
    nf4: Annotated[
        bool, typer.Option("--nf4", help="the adapter was trained by QLoRA: merge into an NF4 base")
    ] = False,
    group_size: Annotated[int | None, typer.Option(min=8, help="weights that share a scale")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(min=1, help="GPUs that will share each layer")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=512, help="calibration tokens")] = None,
    limit_weights: Annotated[float | None, typer.Option(min=0, help="see scripts/compare --help")] = None,
    limit_logits: Annotated[float | None, typer.Option(min=0, help="see scripts/compare --help")] = None,
    limit_score: Annotated[float | None, typer.Option(min=0, help="see scripts/compare --help")] = None,
    no_drafter: Annotated[bool, typer.Option("--no-drafter", help="train no draft model")] = False,
    drafter_minutes: Annotated[
        float | None, typer.Option(min=0.01, help="training of the draft model, see scripts/train_drafter --help")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="keep what the steps left, for other options later")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace another checkpoint at --out")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the steps and do nothing")] = False,
) -> None:
    """Take a base and an adapter to a merged, quantized, checked and locked checkpoint with task file and draft model.

    Run it again after a stop or a failure: finished steps are not repeated. Each step is a command of its own, which
    --dry-run prints.
    """
    options = PrepareOptions(
        base=base,
        adapter=adapter,
        out=out.absolute(),
        choice=TaskChoice(
            task,
            _absolute(task_file or _own_task_file(base, task)),
            _absolute(schema),
            _absolute(template),
            system,
            _absolute(examples),
        ),
        calibration=_absolute(calibration),
        cases=_absolute(cases),
        quantize=not unquantized,
        reuse_search=_absolute(reuse_search),
        merge_options=("--nf4",) if nf4 else (),
        quantize_options=option_words(group_size=group_size, tensor_parallel=tensor_parallel, max_tokens=max_tokens),
        compare_options=option_words(limit_weights=limit_weights, limit_logits=limit_logits, limit_score=limit_score),
        drafter_options=option_words(minutes=drafter_minutes),
        skipped=(DRAFTER,) if no_drafter else (),
    )
    with report_errors(PrepareError, PackageError):
        if dry_run:
            print("\n".join(f"{number}. {step.shown()}" for number, step in enumerate(planned(options), 1)))
        else:
            _prepare(options, keep=keep, force=force)


def _prepare(options: PrepareOptions, *, keep: bool, force: bool) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        record = prepare(options, keep=keep, replace=force)
    except PrepareRefusedError as error:
        say(f"error: {error}")
        raise typer.Exit(REFUSED) from error
    except KeyboardInterrupt as stop:
        say(f"Stopped. What was done stays in {work_path(options.out)}; run the same command to go on.")
        raise typer.Exit(INTERRUPTED) from stop
    _print_summary(record.steps)
    print(f"{options.out}: {record.size:,} bytes, task {record.task}. The record: {find_record(options.out)}")


def _print_summary(steps: Sequence[StepRecord]) -> None:
    """Print one line for each step on stdout."""
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "step" else "right")
    for step in steps:
        table.add_row(
            step.name,
            f"{step.wall_seconds:.1f} s",
            f"{step.processor_seconds:.1f} s",
            f"{step.peak_memory_bytes / 1e6:,.0f} MB",
            f"{step.bytes_written / 1e6:,.1f} MB",
            str(step.files_written),
        )
    wall, processor = sum(s.wall_seconds for s in steps), sum(s.processor_seconds for s in steps)
    peak = max(s.peak_memory_bytes for s in steps)
    table.add_row("all", f"{wall:.1f} s", f"{processor:.1f} s", f"{peak / 1e6:,.0f} MB", "", "")
    Console(width=100).print(table)


def _own_task_file(base: str, task: str | None) -> Path | None:
    """The task.json in the base's folder, if no other task was chosen; it is not fetched with the checkpoint."""
    path = Path(base) / "task.json"
    return path if task is None and path.is_file() else None


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
