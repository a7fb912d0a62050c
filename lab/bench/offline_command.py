"""Compares ways to answer a file of rows, for scripts/dev/bench --workloads batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.table import Column, Table

from lab.bench.asker import Asker, Inputs
from lab.bench.lineup import NOT_PREPARED, EngineFailedError
from lab.bench.machine import about_run
from lab.bench.offline_runners import OfflineAnswer, OfflineRunner
from lab.bench.peers import WeightForms
from lab.bench.protocol import Reply
from lab.bench.questions import read_requests
from pipeline.paths import ROOT
from tasks.errors import TaskError
from tasks.task import create_evaluation

ROWS: Final = ROOT / "examples/honeycomb/people/dev.jsonl"
RUNNERS: Final = "paged,vllm-suffix,vllm-both,ray-vllm-both"


def read_rows(weights: Path, asker: Asker, file: Path | None, limit: int) -> list[Inputs]:
    """The first rows of a file, in its order, because rows of one team follow one another.

    Raises:
        QuestionError, OSError: the file cannot be used.
    """
    path = file or ROWS
    if asker.task_name != "honeycomb":
        return read_requests(path, create_evaluation(weights))[:limit]
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()[:limit]]
    return [{"nlq": record["nlq"], "cols": json.dumps(record["cols"])} for record in records]


def bench_batch(
    runners: Mapping[str, OfflineRunner],
    questions: Sequence[Inputs],
    forms: WeightForms,
    asker: Asker,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure, and return the result; a runner that fails has its error there.

    Each command runs twice in a round: with one row, which gives the time of its start, then with all.
    """
    figures: dict[str, dict[str, Any]] = {
        name: {"note": runner.peer.note, "rounds": []} for name, runner in runners.items()
    }
    first: list[str | None] = []
    for number in range(rounds):
        for name, runner in runners.items():
            if "error" in figures[name]:
                continue
            say(f"round {number + 1}: {name}")
            try:
                one, answers = _round(runner, questions, name)
            except (EngineFailedError, *NOT_PREPARED, ValueError) as error:
                say(f"{name}: {error}")
                figures[name]["error"] = str(error)
                continue
            meanings = [_meaning(asker, *pair) for pair in zip(questions, answers, strict=True)]
            first = first or meanings
            figures[name]["rounds"].append(one)
            figures[name]["valid"] = sum(meaning is not None for meaning in meanings)
            figures[name]["as_first"] = sum(a is not None and a == b for a, b in zip(meanings, first, strict=True))
    return {
        **about_run(),
        "weights": {"folder": forms.name, "sha256": forms.digest},
        "rows": len(questions),
        "engines": {name: {**one, **_middle(one["rounds"])} for name, one in figures.items()},
    }


def batch_table(result: Mapping[str, Any]) -> Table:
    """The figures, a row for each runner; medians of the rounds."""
    figures = ("rows/s", "rows/s, all", "start s", "peak MB", "valid", "as the first")
    columns = (Column(figure, justify="right") for figure in figures)
    table = Table("", *columns, "", title=f"{result['rows']} rows in one command")
    for name, one in result["engines"].items():
        if not one["rounds"]:
            table.add_row(name, *[""] * 6, one["error"].splitlines()[0][:60])
            continue
        rates = (f"{one[figure]:.2f}" for figure in ("rows_per_s", "rows_per_s_whole"))
        numbers = (f"{one['start_seconds']:.1f}", f"{one['peak_mb']:.0f}", str(one["valid"]), str(one["as_first"]))
        table.add_row(name, *rates, *numbers, one["note"])
    return table


def _round(runner: OfflineRunner, questions: Sequence[Inputs], name: str) -> tuple[dict[str, float], list[Any]]:
    start, _ = runner.run(questions[:1], _empty(f"{name}-start"))
    measured, answers = runner.run(questions, _empty(name))
    rest = measured.seconds - start.seconds
    return {
        "start_seconds": start.seconds,
        "seconds": measured.seconds,
        "rows_per_s": (len(questions) - 1) / rest if rest > 0 else 0.0,
        "rows_per_s_whole": len(questions) / measured.seconds,
        "tokens": sum(answer.tokens for answer in answers),
        "peak_mb": measured.peak_mb,
    }, answers


def _middle(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: median(one[key] for one in rounds) for key in (rounds[0] if rounds else ())}


def _empty(name: str) -> Path:
    folder = ROOT / "build/bench/batch" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _meaning(asker: Asker, inputs: Inputs, answer: OfflineAnswer) -> str | None:
    if answer.text is None:
        return None
    if answer.finish is None:
        try:
            return asker.final_meaning(answer.text)
        except TaskError:
            return None
    return asker.meaning(inputs, Reply("", None, 0.0, text=answer.text, finish=answer.finish))
