"""A question with several right queries: what is accepted, and what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluate.results import summarize
from tasks.errors import CaseFileError
from tasks.honeycomb.evaluation.queries import QueryEvaluation
from tasks.honeycomb.query import parse_query

EVALUATION = QueryEvaluation("json")
COLUMNS = ["status", "duration_ms", "name", "error", "region"]
COUNT = {"calculations": [{"op": "COUNT"}]}
SLOW = {"calculations": [{"op": "P99", "column": "duration_ms"}, {"op": "COUNT"}], "breakdowns": ["name", "region"]}


def filtered(*filters: tuple[str, str, Any], **more: Any) -> dict[str, Any]:
    return {**COUNT, "filters": [{"column": c, "op": op, "value": v} for c, op, v in filters], **more}


def file_of(tmp_path: Path, *records: dict[str, Any]) -> Path:
    path = tmp_path / "people.jsonl"
    path.write_text("\n".join(json.dumps({"nlq": "q", "cols": COLUMNS, "free": [], **r}) for r in records))
    return path


FAILING = [filtered(("status", ">=", 500)), filtered(("error", "=", True))]


@pytest.mark.parametrize(
    ("accepted", "free", "answer", "is_accepted"),
    [
        (FAILING, [], filtered(("error", "=", True)), True),
        (FAILING, [], filtered(("error", "=", "true")), True),
        (FAILING, [], filtered(("status", ">=", "500")), True),
        (FAILING, [], filtered(("status", ">=", 500.0)), True),
        (FAILING, [], filtered(("status", ">", 500)), False),
        (FAILING, [], filtered(("status", ">=", 500), ("region", "=", "eu")), False),
        (FAILING, [], filtered(("error", "=", True), time_range=86400), False),
        (FAILING, ["time_range"], filtered(("error", "=", True), time_range=86400), True),
        (FAILING, ["time_range"], filtered(("error", "=", True), start_time=5, end_time=90), True),
        (FAILING, [], filtered(("error", "=", True), filter_combination="OR"), True),  # of one filter
        ([filtered(("status", "in", [5]))], [], filtered(("status", "=", "5")), True),
        ([filtered(("status", "not-in", ["a"]))], [], filtered(("status", "!=", "a")), True),
        ([filtered(("status", "in", [1, 2]))], [], filtered(("status", "in", ["2", "1"])), True),
        ([filtered(("status", "in", [1, 2]))], [], filtered(("status", "in", [1, 2, 3])), False),
        ([filtered(("name", "=", "1.10"))], [], filtered(("name", "=", "1.1")), False),
        ([filtered(("name", "=", "1.10"))], [], filtered(("name", "=", 1.1)), False),
        ([filtered(("name", "=", "7e10"))], [], filtered(("name", "=", 7e10)), False),
        ([SLOW], [], {**SLOW, "calculations": SLOW["calculations"][::-1]}, True),
        ([SLOW], [], {**SLOW, "breakdowns": ["region", "name"]}, True),
        ([SLOW], [], {**SLOW, "breakdowns": ["name"]}, False),
        ([SLOW], ["orders", "limit"], {**SLOW, "orders": [{"op": "COUNT", "order": "descending"}], "limit": 10}, True),
        ([SLOW], ["limit"], {**SLOW, "orders": [{"op": "COUNT", "order": "descending"}], "limit": 10}, False),
    ],
)
def test_equivalent_queries_are_accepted(
    tmp_path: Path, accepted: list[Any], free: list[str], answer: Any, is_accepted: bool
) -> None:
    (case,), refused = EVALUATION.read_cases(file_of(tmp_path, {"accepted": accepted, "free": free}))
    assert not refused
    assert case.reference.accepts(parse_query(json.dumps(answer), COLUMNS)) is is_accepted


def test_the_direction_and_sequence_of_orders_matter(tmp_path: Path) -> None:
    orders = [{"op": "COUNT", "order": "descending"}, {"column": "name", "order": "ascending"}]
    (case,), _ = EVALUATION.read_cases(file_of(tmp_path, {"accepted": [{**SLOW, "orders": orders}]}))
    for given, is_accepted in ((orders, True), (orders[::-1], False), ([{"op": "COUNT"}, orders[1]], False)):
        assert case.reference.accepts(parse_query(json.dumps({**SLOW, "orders": given}), COLUMNS)) is is_accepted


def test_results_are_by_kind_and_invalid_answers_are_not_accepted(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        {"accepted": [COUNT], "category": "distinct"},
        {"accepted": [COUNT], "category": "distinct"},
        {"accepted": [SLOW], "category": "vague"},
        {"accepted": [SLOW], "category": "vague"},
    )
    cases, _ = EVALUATION.read_cases(path)
    texts = [json.dumps(COUNT), '{"breakdowns": ["unknown"]}', "no query", json.dumps(SLOW)]
    results = summarize([EVALUATION.score(case, text, None) for case, text in zip(cases, texts, strict=True)], {})
    assert [results[k]["value"] for k in ("parse", "schema_valid", "column_valid", "accepted")] == [
        0.75,
        0.75,
        0.5,
        0.5,
    ]
    assert {kind: c["accepted"]["value"] for kind, c in results["categories"].items()} == {
        "distinct": 0.5,
        "vague": 0.5,
    }
    assert [failure["line"] for failure in results["failures"]] == [2, 3]


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"accepted": []}, "empty"),
        ({"accepted": [COUNT], "free": ["filter"]}, "filter"),
        ({"accepted": "x"}, "no list"),
    ],
)
def test_an_invalid_line_is_an_error(tmp_path: Path, record: dict[str, Any], named: str) -> None:
    with pytest.raises(CaseFileError, match=named):
        EVALUATION.read_cases(file_of(tmp_path, {"accepted": [COUNT]}, record))


def test_an_accepted_query_must_itself_be_valid(tmp_path: Path) -> None:
    wrong = filtered(("staus", "=", 1))
    cases, refused = EVALUATION.read_cases(file_of(tmp_path, {"accepted": [COUNT]}, {"accepted": [wrong]}))
    assert len(cases) == 1
    assert "staus" in refused[0]


def wrong_fields(accepted: list[dict[str, Any]], free: list[str], answer: dict[str, Any], tmp_path: Path) -> set[str]:
    [case], _ = EVALUATION.read_cases(file_of(tmp_path, {"accepted": accepted, "free": free}))
    found = EVALUATION.score(case, json.dumps(answer), None)
    return {pointer for pointer, is_right in found.fields.items() if not is_right}


def test_the_fields_of_a_wrong_answer_are_compared_with_the_closest_accepted_one(tmp_path: Path) -> None:
    answer = filtered(("status", ">", 500), time_range=86400)
    assert wrong_fields(FAILING, ["time_range"], answer, tmp_path) == {"/filters/0/op"}
    assert wrong_fields(FAILING, [], answer, tmp_path) == {"", "/filters/0/op", "/time_range"}


def test_all_fields_of_an_accepted_answer_are_right_however_it_is_written(tmp_path: Path) -> None:
    assert wrong_fields([filtered(("status", "in", [5]))], [], filtered(("status", "=", "5")), tmp_path) == set()
