"""Measures of one answer are right."""

from __future__ import annotations

import json
from typing import Any

from tasks.evaluation.cases import Case, Score
from tasks.honeycomb.evaluation.comparison import compare_parts
from tasks.honeycomb.evaluation.queries import QueryEvaluation
from tasks.honeycomb.query import parse_query

COLUMNS = ("name", "error", "duration_ms")
REFERENCE = {
    "breakdowns": ["name"],
    "calculations": [{"op": "P99", "column": "duration_ms"}],
    "filters": [{"column": "error", "op": "=", "value": True}, {"column": "name", "op": "!=", "value": "x"}],
    "time_range": 600,
}


def case(line: int = 1) -> Case:
    inputs = {"nlq": "a <b>slow</b> question", "cols": json.dumps(COLUMNS)}
    return Case(line, inputs, parse_query(json.dumps(REFERENCE), COLUMNS), "latency")


def score(changes: dict[str, Any] | None = None, line: int = 1) -> Score:
    return scored(json.dumps(REFERENCE | (changes or {})), line)


def scored(text: str, line: int = 1) -> Score:
    return QueryEvaluation("json").score(case(line), text, None)


def levels(s: Score) -> tuple[bool, ...]:
    assert list(s.measures) == ["parse", "schema_valid", "column_valid", "exact", "execution"]
    return tuple(s.measures.values())


def test_each_level_requires_the_one_before() -> None:
    assert levels(score()) == (True,) * 5
    assert levels(score({"filters": REFERENCE["filters"][::-1]})) == (True,) * 5
    assert levels(score({"time_range": 601})) == (True, True, True, False, False)
    assert levels(score({"breakdowns": ["nam"]})) == (True, True, False, False, False)
    assert levels(score({"limit": 0})) == (True, False, False, False, False)
    assert levels(scored("select 1")) == (False,) * 5


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
