"""The command line of scripts/evaluate.

Owns: options, the progress bars, and what is printed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from honeycomb.errors import HoneycombError
from scripts.evaluation.answer_file import AnswerFile
from scripts.evaluation.answering import Answer
from scripts.evaluation.cases import Case, CaseFileError, read_cases
from scripts.evaluation.page import write_page
from scripts.evaluation.results import SHARES, ResultsError, compare, summarize, write_results
from scripts.evaluation.run import ask_engine, describe, describe_speed, score_all
from scripts.training.errors import AdapterError
from serving.config import Settings
from serving.errors import ServingError

app = typer.Typer(add_completion=False)
console = Console()
Item = TypeVar("Item")
_TOLD = (  # the user's mistakes, whose messages say what to do
    AdapterError, CaseFileError, HoneycombError, OSError, ResultsError, ServingError, typer.BadParameter,
)  # fmt: skip


@app.command()
def evaluate(
    data: Annotated[Path | None, typer.Argument(help="JSONL of {nlq, cols, query}, or conversations")] = None,
    engine: Annotated[str, typer.Option(help="as the setting ENGINE")] = "auto",
    weights: Annotated[Path, typer.Option(help="folder of the checkpoint")] = Path("weights/honeycomb-nlq"),
    limit: Annotated[int | None, typer.Option(min=1, help="only the first cases")] = None,
    no_grammar: Annotated[bool, typer.Option("--no-grammar", help="the model writes what it likes")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all results here")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="write a page of failures here")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="requests in flight")] = 16,
    resume: Annotated[bool, typer.Option("--resume", help="keep what a stopped run left")] = False,
    adapter: Annotated[Path | None, typer.Option(help="judge base and adapter in fp32, no engine")] = None,
    base: Annotated[Path, typer.Option(help="the base for --adapter")] = Path("weights/base"),
    compare_files: Annotated[
        tuple[Path, Path] | None, typer.Option("--compare", help="two result files; nothing is run")
    ] = None,
) -> None:
    """Measure answers: validity, components, exact match, and whether the queries find the same."""
    try:
        if compare_files is not None:
            _print_comparison(*compare_files)
            return
        if data is None:
            raise typer.BadParameter("give a data file, or --compare A.json B.json")
        if resume and json_file is None:
            raise typer.BadParameter("--resume needs --json: the answers lie beside that file")
        cases, refused = read_cases(data, limit)
        for message in refused:
            console.print(f"left out: {message}", style="yellow", markup=False)
        kept = AnswerFile(json_file, resume)
        missing = [c for c in cases if c.line not in kept.answers]
        if adapter is not None:
            settings: dict[str, Any] = {"adapter": adapter.name, "base": base.name, "grammar": False}
            _keep(_adapter_answers(base, adapter), missing, kept)
        else:
            settings = {"engine": engine, "weights": weights.name, "grammar": not no_grammar}
            options = Settings(engine=engine, weights_dir=weights, max_num_seqs=concurrency)
            _keep(lambda some: ask_engine(options, some, not no_grammar, concurrency), missing, kept)
        about = describe(data, len(cases), **settings) | {
            "refused_references": len(refused),
            "speed": describe_speed(list(kept.answers.values())),
        }
        scores = list(_bar(score_all(cases, kept.answers), len(cases), "scoring"))
        _finish(summarize(scores, about), json_file, html_file)
        kept.remove()
    except _TOLD as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error


def _adapter_answers(base: Path, adapter: Path) -> Callable[[list[Case]], Iterator[Answer]]:
    from scripts.evaluation.adapter_source import adapter_answers  # torch: seconds, and only needed here

    return lambda cases: adapter_answers(base, adapter, cases)


def _keep(ask: Callable[[list[Case]], Iterator[Answer]], missing: list[Case], kept: AnswerFile) -> None:
    if missing:
        for answer in _bar(ask(missing), len(missing), "answers"):
            kept.add(answer)


def _bar(items: Iterable[Item], total: int, name: str) -> Iterable[Item]:
    return track(items, description=name, total=total, console=console)


def _finish(results: dict[str, Any], json_file: Path | None, html_file: Path | None) -> None:
    console.print(_table(results))
    if json_file is not None:
        write_results(results, json_file)
    if html_file is not None:
        html_file.parent.mkdir(parents=True, exist_ok=True)
        write_page(results, html_file)


def _table(results: dict[str, Any]) -> Table:
    table = Table(title=f"{results['data']['file']}, {results['n']} questions")
    for name in ("measure", "n", "value", "95 % interval"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name in SHARES:
        _row(table, name.replace("_", " "), results["n"], results[name])
    for part, share in results["f1"].items():
        _row(table, f"F1 {part.replace('_', ' ')}", "", share)
    for name, category in results["categories"].items():
        _row(table, f"exact, {name}", category["n"], category["exact"])
    return table


def _row(table: Table, name: str, count: object, share: dict[str, float]) -> None:
    low, high = (f"{100 * share[end]:.1f}" for end in ("low", "high"))
    table.add_row(name, str(count), f"{100 * share['value']:.1f} %", f"{low}–{high}")


def _print_comparison(first: Path, second: Path) -> None:
    found = compare(*(json.loads(path.read_text(encoding="utf-8")) for path in (first, second)))
    table = Table(title=f"{second.name} minus {first.name}, {found['n']} questions")
    for name in ("measure", "points", "95 % interval"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name in SHARES:
        difference, low, high = (100 * found[name][key] for key in ("difference", "low", "high"))
        table.add_row(name.replace("_", " "), f"{difference:+.1f}", f"{low:+.1f} to {high:+.1f}")
    console.print(table)
