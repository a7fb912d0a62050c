"""Summarize the scores of a run as a result file, and compare two result files.

A proportion is {"value", "low", "high"}, with Wilson's interval; for F1 the interval is bootstrapped over answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.evaluate.components import PARTS, f1, sum_counts
from pipeline.evaluate.intervals import bootstrap, paired_difference, share
from pipeline.evaluate.scoring import Score

SHARES = ("parse", "schema_valid", "column_valid", "exact", "execution")


class ResultsError(Exception):
    """Two result files cannot be compared; the message says why."""


def summarize(scores: Sequence[Score], about: dict[str, Any]) -> dict[str, Any]:
    """The content of a result file; `about` describes the run."""
    ordered = sorted(scores, key=lambda s: s.line)
    categories = sorted({s.category for s in ordered if s.category is not None})
    return {
        **about,
        "n": len(ordered),
        **{name: _share(ordered, name) for name in SHARES},
        "f1": _f1(ordered),
        "categories": {name: _category([s for s in ordered if s.category == name]) for name in categories},
        "failures": [_failure(s) for s in ordered if not s.exact],
        "scores": [{"line": s.line, **{name: getattr(s, name) for name in SHARES}} for s in ordered],
    }


def _share(scores: Sequence[Score], name: str) -> dict[str, float]:
    return share([getattr(s, name) for s in scores])


def _f1(scores: Sequence[Score]) -> dict[str, dict[str, float]]:
    values = f1(sum_counts(s.counts for s in scores))
    counts = [s.counts for s in scores]
    result = {}
    for part in (*PARTS, "all"):
        low, high = bootstrap(counts, _measure(part))
        result[part] = {"value": values[part], "low": low, "high": high}
    return result


def _measure(part: str) -> Callable[[list[Any]], float]:
    def measure(counts: list[Any]) -> float:
        chosen = PARTS if part == "all" else (part,)
        right, given, expected = (sum(c[p][i] for c in counts for p in chosen) for i in range(3))
        return 2 * right / (given + expected) if given + expected else 1.0

    return measure


def _category(scores: Sequence[Score]) -> dict[str, Any]:
    return {"n": len(scores), **{name: _share(scores, name) for name in ("exact", "execution")}}


def _failure(score: Score) -> dict[str, Any]:
    names = ("line", "category", "nlq", "reference", "answer", "problem", *SHARES)
    return {name: getattr(score, name) for name in names}


def measures_of(results: dict[str, Any]) -> list[str]:
    """The names of the proportions in a result file, whatever the task."""
    return [
        name for name, value in results.items() if isinstance(value, dict) and value.keys() == {"value", "low", "high"}
    ]


def category_measure(results: dict[str, Any]) -> str:
    """What a result file has of each category: whether answers are accepted, or else exact."""
    return "accepted" if "accepted" in results else "exact"


def write_results(results: dict[str, Any], path: Path) -> None:
    """Write a result file atomically."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(results, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The differences of all measures, second minus first, with paired bootstrap intervals.

    Raises:
        ResultsError: the files are about different data, cases or tasks.
    """
    if first["data"]["sha256"] != second["data"]["sha256"]:
        raise ResultsError(f"different data: {first['data']['file']} and {second['data']['file']}; use one file")
    by_line = [{s["line"]: s for s in results["scores"]} for results in (first, second)]
    if by_line[0].keys() != by_line[1].keys():
        raise ResultsError(f"different cases: {len(by_line[0])} and {len(by_line[1])}; use the same --limit")
    lines = sorted(by_line[0])
    differences: dict[str, Any] = {"n": len(lines)}
    measures = [[name for name in results["scores"][0] if name != "line"] for results in (first, second)]
    if measures[0] != measures[1]:
        raise ResultsError(f"different tasks: one measured {measures[0]}, the other {measures[1]}")
    for name in measures[0]:
        difference, (low, high) = paired_difference(*([side[i][name] for i in lines] for side in by_line))
        differences[name] = {"difference": difference, "low": low, "high": high}
    return differences
