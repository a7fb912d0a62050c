"""Result files: measures, intervals, comparisons and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluate.page import write_page
from pipeline.evaluate.results import ResultsError, compare, paired_difference, summarize, wilson
from tasks.evaluation.cases import Case, Score


def score(problem: str | None, line: int) -> Score:
    """Of an answer that is right, not exact ("close") or not valid ("wrong")."""
    case = Case(line, {"nlq": "a <b>slow</b> question"}, "range 600", "latency")
    measures = {"valid": problem != "wrong", "exact": problem is None, "execution": problem is None}
    counts = {"time": (int(problem is None), int(problem != "wrong"), 1), "extra": (0, int(problem == "close"), 0)}
    return Score(case, case.inputs["nlq"], case.reference, f"range {60 if problem else 600}", measures, counts, problem)


def test_wilson_against_published_values() -> None:
    low, high = wilson(15, 20)  # from Newcombe 1998, for the score method
    assert (round(low, 3), round(high, 3)) == (0.531, 0.888)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == pytest.approx(1.0)
    assert wilson(0, 0) == (0.0, 1.0)
    for trials in range(1, 100):
        for successes in range(trials + 1):
            low, high = wilson(successes, trials)
            assert 0 <= low <= successes / trials <= high <= 1  # a plot draws the distances


def test_a_paired_difference_is_found_where_unpaired_intervals_overlap() -> None:
    first = [True] * 50 + [False] * 50
    second = [True] * 55 + [False] * 45
    difference, (low, high) = paired_difference(first, second)
    assert difference == pytest.approx(0.05)
    assert 0 < low < 0.05 < high < 0.11
    assert paired_difference(first, first) == (0.0, (0.0, 0.0))


def results(problems: list[str | None], sha: str = "s") -> dict[str, Any]:
    scores = [score(problem, line=i) for i, problem in enumerate(problems)]
    return summarize(scores, {"data": {"file": "d.jsonl", "sha256": sha}})


def test_summary_has_the_documented_keys() -> None:
    found = results([None, None, "close", "wrong"])
    assert found["n"] == 4
    assert found["exact"]["value"] == 0.5
    assert found["valid"]["value"] == 0.75
    assert found["exact"]["low"] < 0.5 < found["exact"]["high"]
    assert found["f1"]["all"]["low"] <= found["f1"]["all"]["value"] <= found["f1"]["all"]["high"]
    assert found["f1"]["all"]["value"] == pytest.approx(4 / 8)  # two right of four given and four expected
    assert (found["precision"]["value"], found["recall"]["value"]) == (0.5, 0.5)
    assert found["agreement"] == [1, 1, 0, 0]  # all parts of the first two answers, and none of the others
    assert "extra" not in found["f1"]  # no reference has it
    assert list(found["categories"]["latency"]) == ["n", "exact", "execution"]
    assert found["categories"]["latency"]["n"] == 4
    assert [f["line"] for f in found["failures"]] == [2, 3]
    assert json.loads(json.dumps(found)) == found


def test_comparison_is_paired_and_refuses_other_data() -> None:
    worse, better = results([None, "close"]), results([None, None])
    assert compare(worse, better)["exact"]["difference"] == 0.5
    with pytest.raises(ResultsError, match="different data"):
        compare(worse, results([None, None], sha="other"))
    with pytest.raises(ResultsError, match="--limit"):
        compare(worse, results([None]))


def test_the_page_shows_failures_side_by_side_and_escapes(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(results([None, "close"]), path)
    page = path.read_text()
    assert "<del>600</del>" in page
    assert "<ins>60</ins>" in page
    assert "&lt;b&gt;slow" in page
    assert "<b>slow" not in page
    assert "50.0 %" in page
