"""Each query has one canonical text, and queries that mean the same are equal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.honeycomb.canonical import canonical, canonical_json, comparison_key, ordered
from tasks.honeycomb.query import parse_query
from tests.tasks.honeycomb.query_strategies import COLUMNS, queries

KEYS = [
    "breakdowns",
    "calculations",
    "filters",
    "filter_combination",
    "orders",
    "havings",
    "limit",
    "time_range",
    "start_time",
    "end_time",
    "granularity",
    "compare_time_offset_seconds",
]


def rewrite(query):
    return json.loads(canonical_json(parse_query(json.dumps(query), None)))


@given(queries())
def test_a_canonical_query_is_written_unchanged(query):
    text = json.dumps(query, ensure_ascii=False)
    assert canonical_json(parse_query(text, COLUMNS)) == text


@given(queries())
def test_reading_what_was_written_gives_the_same_query(query):
    parsed = parse_query(json.dumps(query), COLUMNS)
    assert parse_query(canonical_json(parsed), COLUMNS) == parsed == canonical(parsed)


@given(queries())
def test_groups_are_ordered_by_their_first_number_where_no_order_was_said(query):
    given = parse_query(json.dumps(query), COLUMNS)
    made = json.loads(canonical_json(ordered(given)))
    assert parse_query(json.dumps(made), COLUMNS) == ordered(given), "it is valid"
    numbers = [one for one in query["calculations"] if one["op"] != "HEATMAP"]
    if query.get("breakdowns") and numbers and "orders" not in query:
        assert made.pop("orders") == [{**numbers[0], "order": "descending"}]
    assert made == query


@given(queries(), st.randoms())
def test_the_order_of_keys_is_always_the_same(query, random):
    shuffled = dict(random.sample(sorted(query.items()), len(query)))
    text = canonical_json(parse_query(json.dumps(shuffled), None))
    assert text == json.dumps(query, ensure_ascii=False)
    assert [key for key in KEYS if key in query] == list(json.loads(text))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"calculations": [], "limit": 5}, {"calculations": [{"op": "COUNT"}], "limit": 5}),
        ({"time_range": 7200}, {}),
        ({"time_range": 7200, "end_time": 9}, {"time_range": 7200, "end_time": 9}),
        ({"granularity": 0}, {}),
        ({"granularity": 720}, {"granularity": 720}),
        ({"granularity": 721}, {"granularity": 720}),
        ({"granularity": 3, "time_range": 9}, {"time_range": 9}),
        ({"filter_combination": "AND", "limit": 5}, {"limit": 5}),
        ({"filter_combination": "OR"}, {"filter_combination": "OR"}),
        ({"breakdowns": [], "filters": [], "orders": [], "havings": []}, {}),
        ({"join_column": "", "limit": 5}, {"limit": 5}),
        ({"orders": [{"op": "COUNT"}]}, {"orders": [{"op": "COUNT", "order": "ascending"}]}),
        (
            {"filters": [{"value": 5.0, "op": "=", "column": "a"}]},
            {"filters": [{"column": "a", "op": "=", "value": 5}]},
        ),
        (
            {"filters": [{"column": "a", "op": "in", "value": [1e3, 0.5, True, "1.0"]}]},
            {"filters": [{"column": "a", "op": "in", "value": [1000, 0.5, True, "1.0"]}]},
        ),
    ],
)
def test_defaults_are_written_in_one_way(written, expected):
    with_calculations = {"calculations": [{"op": "COUNT"}]} | expected
    assert rewrite(written) == with_calculations
    assert json.dumps(rewrite(written)["calculations"]) == json.dumps(with_calculations["calculations"])


def test_separators_and_characters_are_those_of_the_training_data():
    text = '{"breakdowns": ["日本 é"], "calculations": [{"op": "MAX", "column": "a"}], "limit": 5}'
    assert canonical_json(parse_query(text, None)) == text


def test_floats_up_to_2_to_the_53_become_integers():
    values = [2.0**53, 2.0**53 + 2, -(2.0**53), 1e300, -0.0]
    query = {"filters": [{"column": "a", "op": "in", "value": values}]}
    expected = "[9007199254740992, 9007199254740994.0, -9007199254740992, 1e+300, 0]"
    assert expected in canonical_json(parse_query(json.dumps(query), None))


def key(**query):
    return comparison_key(parse_query(json.dumps(query), None))


A = {"column": "a", "op": "=", "value": 1}
B = {"column": "b", "op": "exists"}


def test_filters_and_havings_compare_in_any_order():
    more = {"calculate_op": "COUNT", "op": ">", "value": 1}
    less = {"calculate_op": "COUNT", "op": "<", "value": 9}
    assert key(filters=[A, B]) == key(filters=[B, A])
    assert key(havings=[more, less]) == key(havings=[less, more])
    assert key(filters=[A, A]) != key(filters=[A])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"breakdowns": ["a", "b"]}, {"breakdowns": ["b", "a"]}),
        (
            {"calculations": [{"op": "COUNT"}, {"op": "CONCURRENCY"}]},
            {"calculations": [{"op": "CONCURRENCY"}, {"op": "COUNT"}]},
        ),
        ({"filters": [A]}, {"filters": [A | {"value": "1"}]}),
        ({"filters": [A]}, {"filters": [A | {"value": True}]}),
        ({"filters": [A]}, {"filters": [A | {"column": "b"}]}),
        ({"filters": [A, B]}, {"filters": [A, B], "filter_combination": "OR"}),
        ({"limit": 10}, {"limit": 11}),
        ({"time_range": 3600}, {"time_range": 7200}),
    ],
)
def test_queries_with_different_results_have_different_keys(one, other):
    assert key(**one) != key(**other)


def test_the_key_does_not_depend_on_how_a_value_is_written():
    assert key(filters=[A]) == key(filters=[A | {"value": 1.0}])
    assert key(time_range=7200) == key(calculations=[])
