"""What a question means: the conventions of docs/data.md, each on questions as they are generated."""

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from examples.honeycomb.datagen.column_set import ColumnSet
from examples.honeycomb.datagen.example_questions import Example
from examples.honeycomb.datagen.implied import error_filter, root_filter
from examples.honeycomb.datagen.kinds import KINDS
from examples.honeycomb.datagen.noise import as_typed
from examples.honeycomb.datagen.phrasebook import Phrasebook, Style
from examples.honeycomb.datagen.query_draft import Draft
from examples.honeycomb.datagen.question_builder import QuestionBuilder, guard
from examples.honeycomb.datagen.vocabulary import vocabularies

NAMES = (
    "duration_ms",
    "error",
    "trace.trace_id",
    "trace.parent_id",
    "trace.span_id",
    "service.name",
    "http.route",
    "http.method",
)
NAMES += ("http.status_code", "name", "exception.type", "user.id", "cart.item_count", "cache.hit")


def columns(*without: str) -> ColumnSet:
    known = {c.name: c for v in vocabularies().values() for c in v.columns}
    return ColumnSet(tuple(known[name] for name in NAMES if name not in without))


def builder(seed: int, found: ColumnSet) -> QuestionBuilder:
    rng = Random(seed)
    return QuestionBuilder(rng, found, Phrasebook(rng, Style.SEEN))


def asked(kind: str, found: ColumnSet | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Many questions of a kind with their queries."""
    for seed in range(120):
        t = builder(seed, found or columns())
        if sentence := KINDS[kind].ask(t):
            yield sentence, t.draft.query()


def test_groups_are_ordered_by_the_first_calculation_unless_asked_otherwise() -> None:
    draft = Draft(calculations=[("HEATMAP", "d"), ("P99", "d")], breakdowns=["name"])
    assert draft.query()["orders"] == [{"op": "P99", "column": "d", "order": "descending"}]
    assert "orders" not in Draft(calculations=[("HEATMAP", "d")], breakdowns=["name"]).query()
    assert "orders" not in Draft(calculations=[("MAX", "d")]).query()
    assert Draft(breakdowns=["name"]).query()["orders"] == [{"op": "COUNT", "order": "descending"}]
    by_name = Draft(breakdowns=["name"], order_column="name", ascending=True)
    assert by_name.query()["orders"] == [{"column": "name", "order": "ascending"}]


def test_errors_are_the_flag_else_a_status_of_500_or_more() -> None:
    found = error_filter(builder(0, columns()))
    assert found and found.json() == {"column": "error", "op": "=", "value": True}
    found = error_filter(builder(0, columns("error")))
    assert found and found.json() == {"column": "http.status_code", "op": ">=", "value": 500}
    assert error_filter(builder(0, columns("error", "http.status_code"))) is None
    for _, query in asked("errors"):
        assert query["filters"][0] == {"column": "error", "op": "=", "value": True}


def test_root_spans_have_no_parent() -> None:
    found = root_filter(builder(0, columns()))
    assert found and found.json() == {"column": "trace.parent_id", "op": "does-not-exist"}


def test_slowest_is_the_maximum_of_traces_only_root_spans_and_of_routes_beside_the_heatmap() -> None:
    saw = set()
    for sentence, query in asked("slowest"):
        *shown, calculation = query["calculations"]
        assert calculation["column"] == "duration_ms"
        direction = {"MAX": "descending", "MIN": "ascending"}[calculation["op"]]
        assert query["orders"] == [{**calculation, "order": direction}]
        is_root = (query.get("filters") or [None])[0] == {"column": "trace.parent_id", "op": "does-not-exist"}
        is_route = query["breakdowns"][0] == "http.route" and calculation["op"] == "MAX"
        assert shown == ([{"op": "HEATMAP", "column": "duration_ms"}] if is_route else [])
        if query["breakdowns"] == ["trace.trace_id"]:
            assert is_root
            saw.add("traces")
        elif query["breakdowns"] == ["trace.span_id"] and re.search(r"\bspans?\b", sentence):
            assert not is_root
            saw.add("spans")
        elif query["breakdowns"][0] != "trace.trace_id":
            saw.add("routes" if is_route else "others")
    assert saw == {"traces", "spans", "routes", "others"}


def test_slow_requests_are_the_heatmap_of_root_spans_and_the_slowest_the_maximum_by_trace() -> None:
    saw = set()
    for sentence, query in asked("slow events"):
        (calculation,) = query["calculations"]
        if calculation["op"] == "HEATMAP":
            assert "slow" in sentence and "slowest" not in sentence
            assert query["filters"][0] == {"column": "trace.parent_id", "op": "does-not-exist"}
        else:
            assert query["breakdowns"][0] == "trace.trace_id"
        saw.add(calculation["op"])
    assert saw == {"HEATMAP", "MAX"}


def test_routes_with_errors_are_those_with_a_status_above_400() -> None:
    saw = set()
    by_status, by_flag = (
        {"column": "http.status_code", "op": ">", "value": 400},
        {"column": "error", "op": "=", "value": True},
    )
    for _, query in asked("top errors"):
        first, *others = query["filters"]
        named = {*query["breakdowns"], *(one["column"] for one in others)}
        is_route = query["breakdowns"][0] == "http.route" and "http.status_code" not in named
        assert first == (by_status if is_route else by_flag)
        assert "error" not in named
        saw.add(is_route)
    assert saw == {True, False}


def test_latency_without_an_aggregate_is_the_heatmap() -> None:
    for _, query in asked("latency"):
        assert query["calculations"] == [{"op": "HEATMAP", "column": "duration_ms"}]


def test_an_error_rate_is_a_count_by_the_error_column() -> None:
    for _, query in asked("error rate"):
        assert query["calculations"] == [{"op": "COUNT"}]
        assert query["breakdowns"][-1] == "error"


def test_how_many_of_a_column_counts_different_values_and_of_events_counts_events() -> None:
    assert all(query["calculations"][0]["op"] == "COUNT_DISTINCT" for _, query in asked("entities"))
    assert all(query["calculations"] == [{"op": "COUNT"}] for _, query in asked("count"))


def test_a_number_in_top_n_is_the_limit_and_without_one_there_is_none() -> None:
    limits = [query.get("limit") for _, query in asked("top")]
    assert None in limits and {5, 10} & set(limits)
    words = {3: "three", 5: "five", 10: "ten"}
    for sentence, query in asked("top"):
        if limit := query.get("limit"):
            assert str(limit) in sentence or words.get(limit, "-") in sentence


def test_or_is_never_combined_with_conditions_that_the_question_implies() -> None:
    implying = {"errors", "root spans", "statuses", "exceptions", "called", "top errors", "top statuses"}
    for kind in implying | {"having errors"}:
        assert all("filter_combination" not in query for _, query in asked(kind))
    combined = [query for kind in sorted(KINDS) for _, query in asked(kind) if "filter_combination" in query]
    assert combined and all(len(query["filters"]) > 1 for query in combined)


def test_a_granularity_is_at_most_a_tenth_of_the_range() -> None:
    for kind in ("count", "aggregate", "errors"):
        for _, query in asked(kind):
            assert query.get("granularity", 0) <= query.get("time_range", 7200) // 10


def test_typing_errors_do_not_change_names_and_values() -> None:
    sentence = f"show the average {guard('cart.item_count')} for every service where user is {guard('Ab12-X')}"
    for seed in range(300):
        typed = as_typed(Random(seed), sentence)
        assert "cart.item_count" in typed.replace("Cart", "cart")
        assert "Ab12-X" in typed


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_has_many_different_questions(kind: str) -> None:
    sentences = {sentence for sentence, _ in asked(kind)}
    assert len(sentences) > 15


def test_an_example_is_one_line_of_json() -> None:
    example = Example("count", ("a",), {"calculations": [{"op": "COUNT"}]}, "count", (), ("x/1",), "s", ("otel",))
    line = example.json()
    assert "\n" not in line
    assert json.loads(line)["cols"] == ["a"]
