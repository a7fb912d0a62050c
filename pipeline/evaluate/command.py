"""The command line of scripts/evaluate."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from pipeline.evaluate.answering import AnswerFile
from pipeline.evaluate.page import write_page
from pipeline.evaluate.plans import Plan, engine_plan
from pipeline.evaluate.results import (
    ResultsError,
    category_measure,
    compare,
    confidence_results,
    describe,
    describe_speed,
    measures_of,
    summarize,
)
from pipeline.weights.atomic import write_json
from pipeline.weights.default_weights import weights_or_default
from pipeline.weights.errors import CheckpointError
from serving.config import Settings
from serving.errors import ServingError
from tasks.errors import TaskError

app = typer.Typer(add_completion=False)
console = Console()
Item = TypeVar("Item")
_USER_ERRORS = (CheckpointError, TaskError, OSError, ResultsError, ServingError, typer.BadParameter)


@app.command()
def evaluate(
    data: Annotated[
        Path | None,
        typer.Argument(help="JSONL: {input, output}; for Honeycomb {nlq, cols, query} or {nlq, cols, accepted, free}"),
    ] = None,
    engine: Annotated[str, typer.Option(help="like the setting ENGINE")] = "auto",
    weights: Annotated[
        Path | None, typer.Option(help="folder of the checkpoint; by default that of weights.lock")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="number of cases to use, from the first")] = None,
    no_grammar: Annotated[bool, typer.Option("--no-grammar", help="do not constrain answers")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="file for all results")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="file for a page of failures")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="requests in flight")] = 16,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted run")] = False,
    on_demand: Annotated[
        Path | None, typer.Option(help="evaluate this adapter as it is served on demand: unmerged, on --weights")
    ] = None,
    task: Annotated[Path | None, typer.Option(help="task file to use instead of the weights' own")] = None,
    confidence: Annotated[
        bool,
        typer.Option("--confidence", help="keep beside the weights how often fields were right by their probability"),
    ] = False,
    compare_files: Annotated[
        tuple[Path, Path] | None, typer.Option("--compare", help="compare two result files instead of running")
    ] = None,
) -> None:
    """Evaluate answers: validity, exact match and fields; for Honeycomb, also the results of queries."""
    try:
        if compare_files is not None:
            _print_comparison(*compare_files)
            return
        if data is None:
            raise typer.BadParameter("give a data file, or --compare A.json B.json")
        if resume and json_file is None:
            raise typer.BadParameter("--resume needs --json: answers are saved beside that file")
        if confidence and no_grammar:
            raise typer.BadParameter("--confidence needs the grammar: leave --no-grammar out")
        folder = weights_or_default(weights)
        options = Settings(engine=engine, weights_dir=folder, max_num_seqs=concurrency, confidence=True)
        plan = engine_plan(data, limit, options, not no_grammar, task, on_demand)
        results = _run(plan, data, AnswerFile(json_file, resume), json_file, html_file)
        if confidence:
            _keep_confidence(folder, results)
    except _USER_ERRORS as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error


def _run(plan: Plan, data: Path, kept: AnswerFile, json_file: Path | None, html_file: Path | None) -> dict[str, Any]:
    for message in plan.refused:
        console.print(f"left out: {message}", style="yellow", markup=False)
    if missing := [case for case in plan.cases if case.line not in kept.answers]:
        for answer in _bar(plan.ask(missing), len(missing), "answers"):
            kept.add(answer)
    about = describe(data, len(plan.cases), **plan.settings) | {
        "refused_references": len(plan.refused),
        "speed": describe_speed(list(kept.answers.values())),
    }
    scores = list(_bar(plan.score(kept.answers), len(plan.cases), "scoring"))
    results = summarize(scores, about) | confidence_results(scores, kept.answers)
    _finish(results, json_file, html_file)
    kept.remove()
    return results


def _keep_confidence(weights: Path, results: dict[str, Any]) -> None:
    from pipeline.evaluate.reliability import confidence_of, write_reliability  # matplotlib takes a second

    for line in write_reliability(weights, confidence_of(results)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _bar(items: Iterable[Item], total: int, name: str) -> Iterable[Item]:
    return track(items, description=name, total=total, console=console)


def _finish(results: dict[str, Any], json_file: Path | None, html_file: Path | None) -> None:
    console.print(_table(results))
    if json_file is not None:
        write_json(json_file, results)
    if html_file is not None:
        html_file.parent.mkdir(parents=True, exist_ok=True)
        write_page(results, html_file)


def _table(results: dict[str, Any]) -> Table:
    table = Table(title=f"{results['data']['file']}, {results['n']} questions")
    for name in ("measure", "n", "value", "95 % interval"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name in measures_of(results):
        _row(table, name.replace("_", " "), results["n"], results[name])
    for part, share in results["f1"].items():
        _row(table, f"F1 {part}", "", share)
    measure = category_measure(results)
    for name, category in results["categories"].items():
        _row(table, f"{measure}, {name}", category["n"], category[measure])
    return table


def _row(table: Table, name: str, count: object, share: dict[str, float]) -> None:
    low, high = (f"{100 * share[end]:.1f}" for end in ("low", "high"))
    table.add_row(escape(name), str(count), f"{100 * share['value']:.1f} %", f"{low}–{high}")


def _print_comparison(first: Path, second: Path) -> None:
    found = compare(*(json.loads(path.read_text(encoding="utf-8")) for path in (first, second)))
    table = Table(title=f"{second.name} minus {first.name}, {found['n']} questions")
    for name in ("measure", "points", "95 % interval"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name in (name for name in found if name != "n"):
        difference, low, high = (100 * found[name][key] for key in ("difference", "low", "high"))
        table.add_row(name.replace("_", " "), f"{difference:+.1f}", f"{low:+.1f} to {high:+.1f}")
    console.print(table)
