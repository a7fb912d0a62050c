"""Violations that the grammar cannot exclude are repaired and reported; nothing else changes."""

import json

import pytest
from hypothesis import given

from tasks.honeycomb.errors import QueryRuleError, UnknownColumnError
from tasks.honeycomb.query import parse_query, read_answer
from tests.tasks.honeycomb.query_strategies import COLUMNS, queries

P99 = {"op": "P99", "column": "a"}
MORE = {"op": ">", "value": 1}


@given(queries())
def test_a_valid_query_is_not_changed(query):
    answer = read_answer(json.dumps(query), COLUMNS)
    assert answer.repairs == ()
    assert answer.query == parse_query(json.dumps(query), COLUMNS)
    assert answer.text == json.dumps(query, ensure_ascii=False)


@pytest.mark.parametrize(
    ("written", "repaired", "repairs"),
    [
        (
            {"calculations": [P99], "orders": [P99, {"op": "COUNT"}, {"column": "a"}]},
            {"calculations": [P99], "orders": [P99 | {"order": "ascending"}]},
            ("orders[1] dropped: COUNT() is not calculated", "orders[2] dropped: 'a' is not a breakdown"),
        ),
        (
            {"calculations": [P99], "havings": [{"calculate_op": "COUNT"} | MORE]},
            {"calculations": [P99]},
            ("havings[0] dropped: COUNT() is not calculated",),
        ),
        (
            {"calculations": [P99], "start_time": 9000, "end_time": 1000, "granularity": 100},
            {"calculations": [P99], "start_time": 1000, "end_time": 9000, "granularity": 100},
            ("start_time 9000 and end_time 1000 swapped",),
        ),
        (
            {"calculations": [P99], "time_range": 600, "granularity": 3600},
            {"calculations": [P99], "time_range": 600, "granularity": 60},
            ("granularity 3600 lowered to the time range of 600 s",),
        ),
        (
            {"calculations": [P99], "start_time": 5, "end_time": 5, "granularity": 1},
            {"calculations": [P99], "start_time": 5, "end_time": 5},
            ("granularity 1 lowered to the time range of 0 s",),
        ),
        (
            {"calculations": [P99], "time_range": 100_000, "compare_time_offset_seconds": 3600},
            {"calculations": [P99], "time_range": 100_000, "compare_time_offset_seconds": 604_800},
            ("compare_time_offset_seconds 3600 raised to 604800: the time range is 100000 s",),
        ),
        (
            {"calculations": [P99], "time_range": 99_999_999, "compare_time_offset_seconds": 3600},
            {"calculations": [P99], "time_range": 99_999_999},
            ("compare_time_offset_seconds 3600 dropped: the time range is 99999999 s",),
        ),
    ],
)
def test_each_kind_of_violation_is_repaired_and_reported(written, repaired, repairs):
    with pytest.raises(QueryRuleError):
        parse_query(json.dumps(written), ["a"])
    answer = read_answer(json.dumps(written), ["a"])
    assert json.loads(answer.text) == repaired
    assert answer.repairs == repairs


@pytest.mark.parametrize("fields", [{"granularity": 1800}, {"compare_time_offset_seconds": 1800}])
def test_values_at_the_limits_are_not_changed(fields):
    assert read_answer(json.dumps({"time_range": 1800, **fields}), ["a"]).repairs == ()


def test_violations_that_the_grammar_excludes_are_not_repaired():
    with pytest.raises(QueryRuleError, match="cannot all be given"):
        read_answer('{"start_time": 1, "end_time": 2, "time_range": 1}', ["a"])
    with pytest.raises(QueryRuleError, match="limit"):
        read_answer('{"limit": 1001}', ["a"])
    with pytest.raises(UnknownColumnError, match=r"orders\[0\]"):
        read_answer('{"orders": [{"column": "b"}]}', ["a"])
