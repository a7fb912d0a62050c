"""Each rule of the query has a test that breaks it; the message names the cause."""

import json

import pytest

from tasks.honeycomb import ops
from tasks.honeycomb.errors import QueryRuleError, QuerySyntaxError, UnknownColumnError
from tasks.honeycomb.query import check_columns, parse_query
from tasks.honeycomb.query_type import Query


def parse(query):
    return parse_query(json.dumps(query), None)


def call(op, column="a"):
    return {"op": op} if op in ops.OPS_WITHOUT_COLUMN else {"op": op, "column": column}


def having(**changes):
    return {"calculate_op": "COUNT", "op": ">", "value": 1} | changes


def one_filter(op, *value):
    return {"filters": [{"column": "a", "op": op} | ({"value": value[0]} if value else {})]}


BROKEN = [
    ({}, "the query is empty"),
    ({"limit": None}, "the query is empty"),
    ({"join_column": ""}, "the query is empty"),
    ({"colour": "red"}, "colour: Extra inputs are not permitted, got 'red'"),
    ({"limit": 5, "colour": None}, "colour: Extra inputs"),
    ({"calculations": [{"op": "COUNT", "alias": "n"}]}, "calculations.0.alias: Extra inputs"),
    # calculations
    ({"calculations": [{"op": "P42", "column": "a"}]}, "'P999', .*got 'P42'"),
    ({"calculations": [{"op": "count"}]}, "got 'count'"),
    ({"calculations": [{"op": "P99"}]}, "P99 needs a column"),
    ({"calculations": [{"op": "COUNT", "column": "a"}]}, "COUNT takes no column, got 'a'"),
    ({"calculations": [{"op": "CONCURRENCY", "column": "a"}]}, "CONCURRENCY takes no column"),
    ({"calculations": [{"op": "SUM", "column": ""}]}, "at least 1 character"),
    ({"calculations": {"op": "COUNT"}}, "should be a list"),
    # filters
    (one_filter("like", "x"), "got 'like'"),
    (one_filter("exists", "x"), "exists takes no value, got 'x'"),
    (one_filter("does-not-exist", ""), "takes no value"),
    (one_filter("="), "= needs a value"),
    (one_filter("=", None), "= needs a value"),
    (one_filter("=", ["x"]), "= takes one value"),
    (one_filter("=", {"x": 1}), "a string, a finite number, a boolean or a list"),
    (one_filter("in", "x"), "in takes a list, got 'x'"),
    (one_filter("not-in", 3), "not-in takes a list"),
    (one_filter("in", [["x"]]), "a string, a finite number"),
    (one_filter("in", [None]), "a string, a finite number"),
    (one_filter("contains", 3), "contains takes a string, got 3"),
    (one_filter("starts-with", True), "starts-with takes a string"),
    ({"filters": [{"op": "exists"}]}, "filters.0.column: Field required"),
    ({"filters": [{"column": 3, "op": "exists"}]}, "filters.0.column: .*got 3"),
    ({"filter_combination": "XOR"}, "'AND' or 'OR', got 'XOR'"),
    # breakdowns
    ({"breakdowns": "a"}, "should be a list, got 'a'"),
    ({"breakdowns": [1]}, "breakdowns.0: .*got 1"),
    # orders
    ({"orders": [{"order": "descending"}]}, "needs op, column or both"),
    ({"orders": [{"op": "P99", "column": "a"}]}, r"orders\[0\]: P99\(a\) is not calculated"),
    ({"calculations": [call("P99")], "orders": [{"op": "COUNT"}]}, r"COUNT\(\) is not calculated"),
    ({"calculations": [call("P99")], "orders": [{"column": "a"}]}, "'a' is not a breakdown"),
    ({"calculations": [call("P99")], "orders": [call("P99", "b")]}, r"P99\(b\) is not calculated"),
    ({"calculations": [call("HEATMAP")], "orders": [call("HEATMAP")]}, "HEATMAP cannot be used"),
    ({"orders": [{"op": "COUNT", "order": "down"}]}, "'ascending' or 'descending', got 'down'"),
    # havings
    ({"calculations": [call("HEATMAP")], "havings": [having(calculate_op="HEATMAP", column="a")]}, "HEATMAP"),
    ({"havings": [having(calculate_op="SUM", column="a")]}, r"havings\[0\]: SUM\(a\) is not calculated"),
    ({"havings": [having(calculate_op="SUM")]}, "SUM needs a column"),
    ({"havings": [having(column="a")]}, "COUNT takes no column"),
    ({"havings": [having(op="contains")]}, "got 'contains'"),
    ({"havings": [having(value="5")]}, "finite number, got '5'"),
    ({"havings": [having(value=True)]}, "finite number, got True"),
    # limit
    ({"limit": 0}, "greater than or equal to 1, got 0"),
    ({"limit": 1001}, "less than or equal to 1000, got 1001"),
    ({"limit": True}, "valid integer, got True"),
    ({"limit": 5.0}, "valid integer, got 5.0"),
    ({"limit": "5"}, "valid integer, got '5'"),
    # time
    ({"time_range": 0}, "greater than or equal to 1"),
    ({"time_range": True}, "valid integer"),
    ({"start_time": 0}, "greater than or equal to 1"),
    ({"end_time": -1}, "greater than or equal to 1"),
    ({"start_time": 2, "end_time": 1}, "start_time 2 is after end_time 1"),
    ({"start_time": 1, "end_time": 2, "time_range": 1}, "cannot all be given; drop one"),
    ({"granularity": -1}, "greater than or equal to 0"),
    ({"granularity": 7201}, "granularity 7201 is longer than the time range of 7200 s"),
    ({"granularity": 61, "time_range": 60}, "longer than the time range of 60 s"),
    ({"granularity": 11, "start_time": 10, "end_time": 20}, "longer than the time range of 10 s"),
    ({"compare_time_offset_seconds": 1801}, "1800, 3600, .*got 1801"),
    ({"compare_time_offset_seconds": 3600}, "3600 is shorter than the time range of 7200 s"),
    ({"compare_time_offset_seconds": 86400, "time_range": 86401}, "shorter than the time range of 86401 s"),
]


@pytest.mark.parametrize(("query", "message"), BROKEN, ids=[json.dumps(q)[:70] for q, _ in BROKEN])
def test_a_broken_rule_is_named(query, message):
    with pytest.raises(QueryRuleError, match=message):
        parse(query)


GOOD = [
    {"calculations": []},
    {"join_column": "", "limit": 1},
    {"filters": [{"column": "a", "op": "exists", "join_column": ""}]},
    {"calculations": [{"op": "COUNT", "column": None}]},
    {"filters": [{"column": "a", "op": "exists", "value": None}]},
    *({"calculations": [call(op)]} for op in ops.CALCULATION_OPS),
    *(one_filter(op, value) for op in ops.COMPARISON_OPS for value in ("x", "", 0, -1.5, True, False)),
    *(one_filter(op, "x") for op in ops.STRING_OPS),
    *(one_filter(op) for op in ops.EXISTENCE_OPS),
    *(one_filter(op, ["x", 1, 2.5, True]) for op in ops.MEMBERSHIP_OPS),
    {"orders": [{"op": "COUNT"}]},  # COUNT is what empty calculations mean
    {"breakdowns": ["a"], "orders": [{"column": "a", "order": "ascending"}]},
    {
        "calculations": [call("P99")],
        "orders": [call("P99")],
        "havings": [having(calculate_op="P99", column="a")],
    },
    {"limit": 1},
    {"limit": 1000},
    {"start_time": 5, "end_time": 5},
    {"start_time": 5, "time_range": 60},
    {"granularity": 0},
    {"granularity": 7200},
    {"granularity": 10, "start_time": 10, "end_time": 20},
    *({"compare_time_offset_seconds": offset, "time_range": 1800} for offset in ops.COMPARE_OFFSETS),
    {"compare_time_offset_seconds": 7200},
]


@pytest.mark.parametrize("query", GOOD, ids=[json.dumps(q)[:70] for q in GOOD])
def test_valid_queries_are_accepted(query):
    assert parse(query).calculations


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("calculations", {"op": "COUNT"}),
        ("filters", {"column": "a", "op": "exists"}),
        ("breakdowns", "a"),
        ("orders", {"op": "COUNT"}),
        ("havings", having()),
    ],
)
def test_lists_have_at_most_a_hundred_items(field, item):
    assert len(getattr(parse({field: [item] * 100}), field)) == 100
    with pytest.raises(QueryRuleError, match=f"{field}: .*at most 100"):
        parse({field: [item] * 101})


def test_a_query_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Query(limit=1).limit = 2


@pytest.mark.parametrize(
    "place",
    [
        {"breakdowns": ["duration"]},
        {"calculations": [call("P99", "duration")]},
        {"filters": [{"column": "duration", "op": "exists"}]},
    ],
)
def test_columns_must_be_whole_names_and_similar_names_are_suggested(place):
    with pytest.raises(UnknownColumnError, match=r"unknown column 'duration'.*nearest: 'duration_ms'") as caught:
        parse_query(json.dumps(place), ["duration_ms", "name"])
    assert caught.value.nearest == ("duration_ms",)
    assert next(iter(place)) in str(caught.value)


def test_columns_of_orders_and_havings_are_checked_too():
    query = parse({"calculations": [call("SUM", "b")], "orders": [call("SUM", "b")], "breakdowns": ["a"]})
    check_columns(query, ["a", "b"])
    with pytest.raises(UnknownColumnError, match=r"calculations\[0\].column: .*none is near"):
        check_columns(query, ["a"])


def test_the_first_of_many_problems_are_listed():
    with pytest.raises(QueryRuleError, match=r"breakdowns.0.*breakdowns.1.*breakdowns.2.*and 97 more"):
        parse({"breakdowns": list(range(100))})


def test_three_problems_are_all_listed():
    with pytest.raises(QueryRuleError) as caught:
        parse({"breakdowns": [1, 2, 3]})
    assert "more" not in str(caught.value)


def test_long_text_gives_a_short_message():
    with pytest.raises(QueryRuleError) as caught:
        parse({"filter_combination": "x" * 60_000})
    assert len(str(caught.value)) < 300
    with pytest.raises(QuerySyntaxError) as caught:
        parse_query("x" * 60_000, None)
    assert len(str(caught.value)) < 300
