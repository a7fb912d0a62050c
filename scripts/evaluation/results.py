"""Scores of a run put together.

Owns: the shape of the JSON that a run writes, and the comparison of two such files. A share is
{"value", "low", "high"}: Wilson's interval for counts, a bootstrap over answers for F1.

    results = summarize(scores, about={"engine": "paged"}); compare(results, other)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.evaluation.components import PARTS, f1, sum_counts
from scripts.evaluation.scoring import Score
from scripts.evaluation.statistics import bootstrap, paired_difference, wilson

SHARES = ("parse", "schema_valid", "column_valid", "exact", "execution")


class ResultsError(Exception):
    """Two result files cannot be compared; the message says why."""


def summarize(scores: Sequence[Score], about: dict[str, Any]) -> dict[str, Any]:
    """Everything that a result file holds."""
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
    right = sum(getattr(s, name) for s in scores)
    low, high = wilson(right, len(scores))
    return {"value": right / len(scores), "low": low, "high": high}


def _f1(scores: Sequence[Score]) -> dict[str, dict[str, float]]:
    values = f1(sum_counts(s.counts for s in scores))
    counts = [s.counts for s in scores]
    found = {}
    for part in (*PARTS, "all"):
        low, high = bootstrap(counts, _measure(part))
        found[part] = {"value": values[part], "low": low, "high": high}
    return found


def _measure(part: str) -> Callable[[list[Any]], float]:
    def measure(counts: list[Any]) -> float:
        chosen = PARTS if part == "all" else (part,)
        right, given, wanted = (sum(c[p][i] for c in counts for p in chosen) for i in range(3))
        return 2 * right / (given + wanted) if given + wanted else 1.0

    return measure


def _category(scores: Sequence[Score]) -> dict[str, Any]:
    return {"n": len(scores), **{name: _share(scores, name) for name in ("exact", "execution")}}


def _failure(score: Score) -> dict[str, Any]:
    names = ("line", "category", "nlq", "reference", "answer", "problem", *SHARES)
    return {name: getattr(score, name) for name in names}


def write_results(results: dict[str, Any], path: Path) -> None:
    """Write the JSON; a reader never sees half of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(results, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Second minus first on the same cases, with paired bootstrap intervals.

    Raises:
        ResultsError: the files are of different data or cases.
    """
    if first["data"]["sha256"] != second["data"]["sha256"]:
        raise ResultsError(
            f"different data: {first['data']['file']} and {second['data']['file']}; use one file"
        )
    by_line = [{s["line"]: s for s in results["scores"]} for results in (first, second)]
    if by_line[0].keys() != by_line[1].keys():
        raise ResultsError(f"different cases: {len(by_line[0])} and {len(by_line[1])}; use the same --limit")
    lines = sorted(by_line[0])
    found: dict[str, Any] = {"n": len(lines)}
    for name in SHARES:
        difference, (low, high) = paired_difference(*([side[i][name] for i in lines] for side in by_line))
        found[name] = {"difference": difference, "low": low, "high": high}
    return found
