"""The command line of scripts/compare."""

from __future__ import annotations

import datetime
import math
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from pipeline.compare.compare_checkpoints import Limits, compare_checkpoints
from pipeline.weights.atomic import write_json
from pipeline.weights.cpu_name import cpu_name
from pipeline.weights.errors import CheckpointError
from serving.errors import ServingError
from tasks.errors import TaskError

app = typer.Typer(add_completion=False)
console = Console(highlight=False)
_USER_ERRORS: Final = (CheckpointError, OSError, ServingError, TaskError)
_PACKAGES: Final = ("torch", "transformers", "numpy")
_DEFAULT: Final = Limits()
_ADVICE: Final = (
    "What may help: search on more texts of this task (--max-tokens) and on no other; leave single layers in 16 bits "
    "(--sixteen-bits); serve the weights unquantized; or set a limit that you can accept."
)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="folder of a checkpoint")],
    after: Annotated[Path, typer.Argument(help="folder of what was made of it, such as its AWQ checkpoint")],
    task_cases: Annotated[
        Path | None, typer.Option(help="cases as scripts/evaluate takes them: compare logits and scores on them")
    ] = None,
    calibration: Annotated[Path | None, typer.Option(help='or JSON lines of {"text": …}: compare logits only')] = None,
    task: Annotated[Path | None, typer.Option(help="task file of --task-cases instead of the checkpoints' own")] = None,
    limit_weights: Annotated[
        float, typer.Option(min=0, help="relative error of the weights of any layer")
    ] = _DEFAULT.weights,
    limit_logits: Annotated[
        float | None, typer.Option(min=0, help=f"mean divergence of logits, in nats; default {_DEFAULT.logits:g}")
    ] = None,
    limit_score: Annotated[
        float | None, typer.Option(min=0, help=f"points that any measure may lose; default {_DEFAULT.score:g}")
    ] = None,
    max_cases: Annotated[int, typer.Option(min=1, help="use the first cases only")] = 100,
    max_tokens: Annotated[int, typer.Option(min=512, help="compare logits on so many tokens at most")] = 4096,
    json_file: Annotated[Path | None, typer.Option("--json", help="file for the report")] = None,
) -> None:
    """Compare a checkpoint with the one it was made from; exits with 1 if it lost more than a limit allows.

    Weights: the relative error of each linear layer, apart from scales that cancel. Logits: the mean Kullback-Leibler
    divergence in fp32, over the reference answers of cases or over all of a text. Scores: the task's measures on the
    paged engine.
    """
    if task_cases is not None and calibration is not None:
        raise typer.BadParameter("give one of --task-cases and --calibration")
    if task_cases is None and (limit_score is not None or task is not None):
        raise typer.BadParameter("--limit-score and --task need --task-cases")
    if task_cases is None and calibration is None and limit_logits is not None:
        raise typer.BadParameter("--limit-logits needs --task-cases or --calibration")
    limits = Limits(
        weights=limit_weights,
        logits=_DEFAULT.logits if limit_logits is None else limit_logits,
        score=_DEFAULT.score if limit_score is None else limit_score,
    )
    try:
        report = compare_checkpoints(
            before,
            after,
            limits=limits,
            cases=task_cases,
            calibration=calibration,
            task=task,
            max_cases=max_cases,
            max_tokens=max_tokens,
        )
    except _USER_ERRORS as error:
        Console(stderr=True).print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    _print(report)
    if json_file is not None:
        write_json(json_file, _finite({**_about(), **report}))
    if not report["passed"]:
        raise typer.Exit(1)


def _print(report: dict[str, Any]) -> None:
    table = Table(title=f"{report['after']} against {report['before']}")
    for name in ("measure", "before", "after", "change", "limit"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    limits, weights, logits, scores = (report[name] for name in ("limits", "weights", "logits", "scores"))
    table.add_row("weights: mean error of a layer", "", "", f"{weights['mean']:.3f}", "")
    table.add_row(
        f"weights: worst, {weights['worst']['layer'].removeprefix('model.')}",
        "",
        "",
        f"{weights['worst']['error']:.3f}",
        f"{limits['weights']:g}",
    )
    if logits is not None:
        table.add_row("logits: mean KL, nats", "", "", f"{logits['kl']:.4f}", f"{limits['logits']:g}")
        table.add_row("logits: same likeliest token", "", "", f"{100 * logits['top1']:.1f} %", "")
    for name, measure in scores["measures"].items() if scores is not None else ():
        shares = (f"{100 * measure[side]:.1f} %" for side in ("before", "after"))
        points = f"{measure['points']:+.1f} points"
        table.add_row(f"score: {name.replace('_', ' ')}", *shares, points, f"-{limits['score']:g}")
    console.print(table)
    if logits is None:
        console.print("Logits and scores were not compared: give --task-cases, or --calibration for logits alone.")
    for sentence in report["failures"]:
        console.print(f"REFUSED: {sentence}", style="red", markup=False, soft_wrap=True)
    if report["failures"]:
        console.print(_ADVICE, soft_wrap=True)
    if report["passed"]:
        console.print("Within all limits.", style="green")


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _about() -> dict[str, Any]:
    return {
        "command": " ".join(["scripts/compare", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": cpu_name(),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in _PACKAGES}},
    }
