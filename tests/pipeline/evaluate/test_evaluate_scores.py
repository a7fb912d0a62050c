"""Measures and intervals are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluate.cases import Case
from pipeline.evaluate.components import compare_parts, f1, sum_counts
from pipeline.evaluate.intervals import bootstrap, paired_difference, wilson
from pipeline.evaluate.page import write_page
from pipeline.evaluate.results import ResultsError, compare, summarize
from pipeline.evaluate.scoring import Score, score_answer
from tasks.honeycomb.query import parse_query

COLUMNS = ("name", "error", "duration_ms")
REFERENCE = {
    "breakdowns": ["name"],
    "calculations": [{"op": "P99", "column": "duration_ms"}],
    "filters": [{"column": "error", "op": "=", "value": True}, {"column": "name", "op": "!=", "value": "x"}],
    "time_range": 600,
}


def case(line: int = 1) -> Case:
    return Case(line, "a <b>slow</b> question", COLUMNS, parse_query(json.dumps(REFERENCE), COLUMNS), "latency")


def score(changes: dict[str, Any] | None = None, line: int = 1) -> Score:
    return score_answer(case(line), json.dumps(REFERENCE | (changes or {})))


def levels(s: Score) -> tuple[bool, ...]:
    return s.parse, s.schema_valid, s.column_valid, s.exact, s.execution


def test_each_level_requires_the_one_before() -> None:
    assert levels(score()) == (True,) * 5
    assert levels(score({"filters": REFERENCE["filters"][::-1]})) == (True,) * 5
    assert levels(score({"time_range": 601})) == (True, True, True, False, False)
    assert levels(score({"breakdowns": ["nam"]})) == (True, True, False, False, False)
    assert levels(score({"limit": 0})) == (True, False, False, False, False)
    assert levels(score_answer(case(), "select 1")) == (False,) * 5


def test_execution_accepts_queries_that_only_look_different() -> None:
    changed = score({"filters": [REFERENCE["filters"][1], {"column": "error", "op": "in", "value": [True]}]})
    assert levels(changed) == (True, True, True, False, True)


def test_problems_name_the_column() -> None:
    assert "'nam'" in (score({"breakdowns": ["nam"]}).problem or "")
    assert score().problem is None


def test_a_wrong_value_lowers_only_the_score_of_values() -> None:
    reference = case().reference
    wrong = parse_query(json.dumps(REFERENCE | {"filters": [REFERENCE["filters"][0]]}), None)
    filters = [REFERENCE["filters"][0], REFERENCE["filters"][1] | {"value": "y"}]
    wrong_value = parse_query(json.dumps(REFERENCE | {"filters": filters}), None)
    assert compare_parts(reference, wrong_value)["filter_columns"] == (2, 2, 2)
    assert compare_parts(reference, wrong_value)["filter_ops"] == (2, 2, 2)
    assert compare_parts(reference, wrong_value)["filter_values"] == (1, 2, 2)
    assert compare_parts(reference, wrong)["filter_columns"] == (1, 1, 2)
    assert compare_parts(reference, None)["calculations"] == (0, 0, 1)


def test_or_counts_as_an_operator() -> None:
    reference = case().reference
    either = parse_query(json.dumps(REFERENCE | {"filter_combination": "OR"}), None)
    assert compare_parts(reference, either)["filter_ops"] == (2, 3, 2)


def test_f1_of_parts_and_of_all() -> None:
    values = f1(sum_counts([dict.fromkeys(compare_parts(case().reference, None), (1, 2, 1))]))
    assert values["orders"] == pytest.approx(2 / 3)
    assert values["all"] == pytest.approx(2 / 3)
    assert f1(sum_counts([compare_parts(case().reference, case().reference)]))["havings"] == 1.0


def test_wilson_against_published_values() -> None:
    low, high = wilson(15, 20)  # from Newcombe 1998, for the score method
    assert (round(low, 3), round(high, 3)) == (0.531, 0.888)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == pytest.approx(1.0)
    assert wilson(0, 0) == (0.0, 1.0)


def test_bootstrap_covers_the_mean_and_is_seeded() -> None:
    items = [0, 1] * 50
    low, high = bootstrap(items, lambda x: sum(x) / len(x))
    assert 0.35 < low < 0.5 < high < 0.65
    assert bootstrap(items, lambda x: sum(x) / len(x)) == (low, high)


def test_a_paired_difference_is_found_where_unpaired_intervals_overlap() -> None:
    first = [True] * 50 + [False] * 50
    second = [True] * 55 + [False] * 45
    difference, (low, high) = paired_difference(first, second)
    assert difference == pytest.approx(0.05)
    assert 0 < low < 0.05 < high < 0.11
    assert paired_difference(first, first) == (0.0, (0.0, 0.0))


def results(answers: list[dict[str, Any] | None], sha: str = "s") -> dict[str, Any]:
    scores = [score(a, line=i) for i, a in enumerate(answers)]
    return summarize(scores, {"data": {"file": "d.jsonl", "sha256": sha}})


def test_summary_has_the_documented_keys() -> None:
    found = results([None, None, {"time_range": 60}, {"limit": 0}])
    assert found["n"] == 4
    assert found["exact"]["value"] == 0.5
    assert found["schema_valid"]["value"] == 0.75
    assert found["exact"]["low"] < 0.5 < found["exact"]["high"]
    assert found["f1"]["all"]["low"] <= found["f1"]["all"]["value"] <= found["f1"]["all"]["high"]
    assert found["categories"]["latency"]["n"] == 4
    assert [f["line"] for f in found["failures"]] == [2, 3]
    assert json.loads(json.dumps(found)) == found


def test_comparison_is_paired_and_refuses_other_data() -> None:
    worse, better = results([None, {"limit": 3}]), results([None, None])
    assert compare(worse, better)["exact"]["difference"] == 0.5
    with pytest.raises(ResultsError, match="different data"):
        compare(worse, results([None, None], sha="other"))
    with pytest.raises(ResultsError, match="--limit"):
        compare(worse, results([None]))


def test_the_page_shows_failures_side_by_side_and_escapes(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(results([None, {"time_range": 60}]), path)
    page = path.read_text()
    assert "<del>600</del>" in page
    assert "<ins>60</ins>" in page
    assert "&lt;b&gt;slow" in page
    assert "<b>slow" not in page
    assert "50.0 %" in page
