"""Execution shows the meaning of a query, and finds nearly every mistake."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.honeycomb.evaluation.execution import EventTable, same_results
from tasks.honeycomb.evaluation.queries import QueryEvaluation
from tasks.honeycomb.ops import CALCULATION_OPS, OPS_WITHOUT_COLUMN
from tasks.honeycomb.query import parse_query
from tasks.honeycomb.query_type import Query
from tests.tasks.honeycomb.evaluation.mutations import mutants

REFERENCES = Path(__file__).parent / "references.jsonl"


def query(**fields: Any) -> Query:
    return parse_query(json.dumps({"calculations": [{"op": "COUNT"}]} | fields), None)


def rows(**fields: Any) -> list[tuple[Any, ...]]:
    with EventTable(query(**fields), query(**fields), seed=0) as table:
        return table.summary(query(**fields))


def test_at_least_95_percent_of_changed_references_have_another_result() -> None:
    cases, refused = QueryEvaluation("json").read_cases(REFERENCES)
    assert not refused
    tried, missed = Counter[str](), Counter[str]()
    for case in cases[::2]:
        for name, mutant in mutants(case.reference, json.loads(case.inputs["cols"]), seed=case.line):
            tried[name] += 1
            missed[name] += same_results(case.reference, mutant)
    assert tried.total() > 250
    assert len(tried) >= 20
    assert missed.total() <= 0.05 * tried.total(), missed


def test_every_reference_matches_itself_and_has_a_result() -> None:
    cases, _ = QueryEvaluation("json").read_cases(REFERENCES)
    assert all(same_results(c.reference, c.reference) for c in cases)


def filtered(*filters: dict[str, Any], **more: Any) -> Query:
    return query(filters=list(filters), **more)


A, B = {"column": "a", "op": "=", "value": "x"}, {"column": "b", "op": ">", "value": 3}
NUMBER = {"column": "b", "op": "=", "value": 500}
MANY = {"calculate_op": "COUNT", "op": ">", "value": 9999}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (filtered(A, B), filtered(B, A)),
        (query(breakdowns=["a", "b"]), query(breakdowns=["b", "a"])),
        (filtered(A), filtered({"column": "a", "op": "in", "value": ["x"]})),
        (filtered(NUMBER), filtered(NUMBER | {"op": "in", "value": [500.0]})),
        (
            query(calculations=[{"op": "COUNT"}, {"op": "MAX", "column": "b"}], breakdowns=["a"]),
            query(calculations=[{"op": "MAX", "column": "b"}, {"op": "COUNT"}], breakdowns=["a"]),
        ),
        (filtered(A, B, filter_combination="OR"), filtered(B, A, filter_combination="OR")),
        (query(orders=[{"op": "COUNT", "order": "descending"}]), query(limit=10)),
    ],
)  # fmt: skip
def test_queries_that_mean_the_same_match(one: Query, other: Query) -> None:
    assert same_results(one, other)
    assert same_results(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (filtered(A, B), filtered(A, B, filter_combination="OR")),
        (filtered({"column": "b", "op": ">", "value": 3}), filtered({"column": "b", "op": ">=", "value": 3})),
        (filtered(A), filtered({"column": "a", "op": "=", "value": "X"})),
        (query(breakdowns=["a"]), query(breakdowns=["a"], limit=3)),
        (query(), query(time_range=7201 * 2)),
        (query(), query(calculations=[{"op": "CONCURRENCY"}])),
        (query(time_range=86400), query(time_range=86400, compare_time_offset_seconds=86400)),
        (query(time_range=86400), query(time_range=86400, granularity=60)),
        (query(breakdowns=["a"]), query(breakdowns=["a"], havings=[MANY])),
    ],
)  # fmt: skip
def test_queries_that_differ_do_not_match(one: Query, other: Query) -> None:
    assert not same_results(one, other)
    assert not same_results(other, one)


def test_queries_without_results_prove_nothing() -> None:
    nothing = filtered(A, {"column": "a", "op": "=", "value": "y"}, breakdowns=["c"])
    assert not same_results(nothing, filtered(A, {"column": "a", "op": "=", "value": "z"}, breakdowns=["c"]))


@pytest.mark.parametrize("op", [op for op in CALCULATION_OPS if op not in OPS_WITHOUT_COLUMN])
def test_similar_ops_give_different_numbers(op: str) -> None:
    calculated = [o for o in CALCULATION_OPS if o not in OPS_WITHOUT_COLUMN]
    neighbour = calculated[calculated.index(op) - 1]
    one, other = (query(calculations=[{"op": o, "column": "d"}]) for o in (op, neighbour))
    assert not same_results(one, other)


@pytest.mark.parametrize(
    "op",
    ["starts-with", "ends-with", "contains", "does-not-start-with", "does-not-end-with", "does-not-contain"],
)
def test_string_filters_split_events_in_two(op: str) -> None:
    """An op and its negation share no event and together match all, including those without the column."""
    opposite = (
        op.removeprefix("does-not-") if op.startswith("does-not-") else f"does-not-{op.replace('s-with', '-with')}"
    )
    opposite = {"does-not-contains": "does-not-contain", "contain": "contains"}.get(opposite, opposite)
    opposite = {"start-with": "starts-with", "end-with": "ends-with"}.get(opposite, opposite)
    one, other = (filtered({"column": "url", "op": o, "value": "/api"}) for o in (op, opposite))
    with EventTable(one, other, seed=0) as table:
        counts = [table.summary(q)[0][0] for q in (one, other, query())]
    assert counts[0] > 100
    assert counts[1] > 100
    assert counts[0] + counts[1] == counts[2]


def test_limits_and_orders_are_applied() -> None:
    ordered = {"breakdowns": ["a"], "orders": [{"op": "COUNT", "order": "descending"}]}
    found = rows(**ordered, limit=7)
    assert len(found) == 7
    assert [r[1] for r in found] == sorted((r[1] for r in found), reverse=True)
    assert len(rows(**ordered, limit=100)) == 100


def test_groups_are_above_below_and_at_the_limit_of_a_having() -> None:
    for calculation, threshold in (({"op": "COUNT"}, 10_000), ({"op": "P99", "column": "d"}, 1500)):
        having = {"calculate_op": calculation["op"], "value": threshold}
        having |= {"column": calculation["column"]} if "column" in calculation else {}
        fields: dict[str, Any] = {"breakdowns": ["a"], "calculations": [calculation]}
        sizes = {}
        for op in (">", ">=", "<"):
            wanted = query(**fields, havings=[having | {"op": op}])
            with EventTable(wanted, query(**fields), seed=0) as table:
                sizes[op] = len(table.summary(wanted))
        assert 0 < sizes[">"] < sizes[">="]
        assert sizes["<"] > 0


def test_the_same_seed_gives_the_same_events() -> None:
    fields = {"breakdowns": ["a"], "calculations": [{"op": "SUM", "column": "d"}]}
    assert rows(**fields) == rows(**fields)


@pytest.mark.parametrize("value", ["it's", '"', "'; DROP TABLE events; --", "日本", "\\", "%_"])
def test_values_are_quoted(value: str) -> None:
    asked = filtered({"column": "a'b", "op": "contains", "value": value}, breakdowns=["a'b"])
    assert same_results(asked, asked)
