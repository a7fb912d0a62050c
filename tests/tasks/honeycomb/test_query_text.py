"""Both surfaces give the same query; any other text is a QueryError."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.honeycomb.errors import QueryError, QueryRuleError, QuerySyntaxError
from tasks.honeycomb.query import parse_query, read_answer
from tests.tasks.honeycomb.query_strategies import COLUMNS, queries

SURFACES = {
    "json": json.dumps,
    "raw json": lambda query: json.dumps(query, ensure_ascii=False),
    "spread json": lambda query: json.dumps(query, indent=2),
    "python": repr,
    "quoted python": lambda query: f' "{query!r}"',
    "after a newline": lambda query: f'\n"{query!r}"\n',
    "string of json": lambda query: json.dumps(json.dumps(query)),
}


@pytest.mark.parametrize("write", SURFACES.values(), ids=SURFACES)
@settings(max_examples=40)
@given(query=queries())
def test_every_surface_gives_the_same_query(write, query):
    assert parse_query(write(query), COLUMNS) == parse_query(json.dumps(query), None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "neither JSON nor a Python literal"),
        ("   ", "neither"),
        ("[]", "is a list, not an object"),
        ("3", "is a int, not an object"),
        ('"name"', "neither"),
        ("\"{'limit': 1}", "neither"),
        ('""', "neither"),
        ('"', "neither"),
        ('{"limit": 1', "neither"),
        ('{"limit": 1} trailing', "neither"),
        ('{"limit": NaN}', "neither"),
        ('{"limit": 1, "limit": 2}', "'limit' is given twice"),
        ("{'limit': 1, 'limit': 2}", "'limit' is given twice"),
        ("{'a': {'b': 1, 'b': 2}}", "'b' is given twice"),
        ("{1: 2}", "a key is not a string"),
        ("{**{}}", "a key is not a string"),
        ("{'limit': (1,)}", "Tuple is not a literal value"),
        ("{'limit': {1}}", "Set is not"),
        ("{'limit': 1 + 1}", "BinOp is not"),
        ("{'limit': b'1'}", "Constant is not"),
        ("{'limit': -True}", "UnaryOp is not"),
        ("{'limit': len('a')}", "Call is not"),
        ("{'limit': true}", "Name is not"),
        ('{"a": "\\ud800"}', "unpaired surrogate"),
        ("{'a': '\\ud800'}", "unpaired surrogate"),
        ('{"\\udc00": 1}', "unpaired surrogate"),
        ('{"limit": ' + "9" * 50 + "}", "more than 40 digits"),
        ('{"limit": ' + "9" * 5000 + "}", "neither"),
        ("{'limit': 0x" + "f" * 5000 + "}", "more than 40 digits"),
        ('{"a": ' + "[" * 20 + "]" * 20 + "}", "nested more than 8 levels deep"),
        ("{'a': " + "[" * 20 + "]" * 20 + "}", "nested more than 8 levels deep"),
    ],
)
def test_text_that_is_not_an_object_is_an_error_with_the_reason(text, problem):
    with pytest.raises(QuerySyntaxError) as caught:
        parse_query(text, None)
    assert problem in str(caught.value)


def test_the_limit_of_an_answer_is_exact_and_in_bytes():
    assert parse_query('{"limit": 1}'.ljust(65_536), None).limit == 1
    for text in ('{"limit": 1}'.ljust(65_537), "é" * 32_769):
        with pytest.raises(QuerySyntaxError, match="the limit is 64 KiB"):
            parse_query(text, None)


def test_integers_of_forty_digits_are_kept_exactly():
    most = int("9" * 40)
    for value in (most, -most):
        text = f'{{"filters": [{{"column": "a", "op": "=", "value": {value}}}]}}'
        assert parse_query(text, None).filters[0].value == value
        with pytest.raises(QuerySyntaxError, match="more than 40 digits"):
            parse_query(text.replace(str(most), f"1{'0' * 40}"), None)


@pytest.mark.parametrize("write", [json.dumps, repr])
def test_eight_levels_are_read_and_nine_are_not(write):
    def nested(lists):
        value = 1
        for _ in range(lists):
            value = [value]
        return write({"limit": value})

    with pytest.raises(QueryRuleError, match="limit"):
        parse_query(nested(6), None)
    with pytest.raises(QuerySyntaxError, match="nested more than 8 levels deep"):
        parse_query(nested(7), None)


@pytest.mark.parametrize(
    "unit",
    [
        "[",
        "(",
        "{",
        '{"a":',
        "{'a':",
        "-",
        "~",
        "not ",
        "lambda:",
        "a.",
        "1+",
        "f(",
        "\0",
        '"',
        "'",
        "\\",
        "é",
        "[]",
    ],
)
@pytest.mark.parametrize("before", ["", '"', "{'a': "])
def test_any_depth_and_length_is_a_query_error(unit, before):
    text = before + unit * (60_000 // len(unit.encode()))
    with pytest.raises(QueryError):
        parse_query(text, ["a"])


PIECES = """{" {' " ' : , [ ] { } filters orders op COUNT name 1 - True null 1e999 \\u \\x \\N{ # ..."""
pieces = st.sampled_from([*PIECES.split(), ": ", ", ", "\n"])


@given(st.text() | st.lists(pieces).map("".join))
@example("{'a': '\\N{'}")
@example('{"limit": 1e999}')
@example("'\\")
def test_any_text_is_a_query_or_a_query_error(text):
    for read in (parse_query, read_answer):
        try:
            read(text, ["name"])
        except QueryError as error:
            assert str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(query=queries(), data=st.data())
def test_a_valid_query_with_one_random_value_is_a_query_or_a_query_error(query, data):
    key = data.draw(st.sampled_from(sorted(query)))
    wild = data.draw(json_values)
    if isinstance(query[key], list) and data.draw(st.booleans()):
        query[key].append(wild)
    else:
        query[key] = wild
    for read in (parse_query, read_answer):
        try:
            read(repr(query), COLUMNS)
        except QueryError as error:
            assert str(error)
