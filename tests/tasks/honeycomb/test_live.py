"""What is streamed of an unfinished answer, and that the parts join to one valid query."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.types import FinishReason
from tasks.honeycomb.errors import QuerySyntaxError, UnknownColumnError
from tasks.honeycomb.live import SHOWN_AT_ONCE, QueryReader
from tasks.honeycomb.query import read_answer
from tests.tasks.honeycomb.query_strategies import COLUMNS, queries


def show(text: str, cuts: list[int], columns=COLUMNS) -> list[str]:
    """Push the text in pieces; returns everything that was streamed, including the end."""
    live = QueryReader(columns, "json")
    places = [0, *sorted(cuts), len(text)]
    shown = [live.push(text[a:b]) for a, b in itertools.pairwise(places)]
    return [*shown, live.finish(FinishReason.STOP)]


@given(query=queries(), cuts=st.lists(st.integers(0, 300), max_size=12), seed=st.integers())
def test_the_streamed_text_is_the_query_for_any_order_of_keys_and_any_pieces(query, cuts, seed):
    items = list(query.items())
    random.Random(seed).shuffle(items)
    text = json.dumps(dict(items), ensure_ascii=False)
    shown = "".join(show(text, [cut for cut in cuts if cut < len(text)]))
    assert read_answer(shown, COLUMNS).text == read_answer(text, COLUMNS).text


@given(query=queries(), cuts=st.lists(st.integers(0, 300), max_size=12))
def test_a_canonical_answer_is_streamed_unchanged(query, cuts):
    text = read_answer(json.dumps(query), COLUMNS).text
    assert "".join(show(text, [cut for cut in cuts if cut < len(text)])) == text


@given(query=queries())
def test_text_that_cannot_change_is_streamed_character_by_character(query):
    """In canonical text, everything before the first key that has to wait is streamed at once."""
    text = read_answer(json.dumps(query), COLUMNS).text
    live = QueryReader(COLUMNS, "json")
    shown = "".join(live.push(character) for character in text)
    head = {key: value for key, value in json.loads(text).items() if key in SHOWN_AT_ONCE}
    assert shown == json.dumps(head, ensure_ascii=False)[:-1]


def test_no_part_of_the_key_of_a_waiting_clause_is_streamed():
    live = QueryReader(["a"], "json")
    assert live.push('{"calculations": [{"op": "COUNT"}], "ord') == '{"calculations": [{"op": "COUNT"}]'
    assert live.push('ers": [{"op": "COUNT"}]}') == ""
    assert live.finish(FinishReason.STOP) == ', "orders": [{"op": "COUNT", "order": "ascending"}]}'


def test_text_that_is_repaired_was_not_streamed():
    """The order matches no calculation, so it is dropped."""
    text = '{"orders": [{"op": "MAX", "column": "a", "order": "ascending"}], "calculations": [{"op": "COUNT"}]}'
    live = QueryReader(["a"], "json")
    assert live.push(text) == "{"
    assert live.finish(FinishReason.STOP) == '"calculations": [{"op": "COUNT"}]}'
    assert len(live.notes) == 1


@pytest.mark.parametrize(
    "value", ['"orders": [', "}]}", "a\\", 'quote"', "{[", ', "limit": 5}', "\n"], ids=["key", *"abcdef"]
)
def test_text_in_a_string_is_not_read_as_structure(value):
    text = json.dumps({"calculations": [{"op": "COUNT"}], "filters": [{"column": "a", "op": "=", "value": value}]})
    live = QueryReader(["a"], "json")
    assert "".join(live.push(character) for character in text) == text[:-1]
    assert live.finish(FinishReason.STOP) == "}"


def test_white_space_before_the_answer_is_not_streamed():
    assert "".join(show(' \n{"limit": 5}', [1], ["a"])) == '{"calculations": [{"op": "COUNT"}], "limit": 5}'


@pytest.mark.parametrize("text", ["[1, 2]", "nonsense", '"quoted"', "", "{}", '{"limit": 5', "{]", "}}{{"])
def test_invalid_text_fails_at_the_end_and_little_of_it_is_streamed(text):
    live = QueryReader(["a"], "json")
    assert live.push(text) in ("", "{")
    with pytest.raises(Exception, match=r"answer|query"):
        live.finish(FinishReason.STOP)


def test_an_unknown_column_fails_at_the_end():
    live = QueryReader(["a"], "json")
    live.push('{"breakdowns": ["b"]}')
    with pytest.raises(UnknownColumnError):
        live.finish(FinishReason.STOP)


def test_a_python_literal_waits_for_its_end():
    live = QueryReader(["a"], "python-repr")
    assert live.push(" \"{'breakdowns': ['a']}\"") == ""
    assert live.finish(FinishReason.STOP) == '{"breakdowns": ["a"], "calculations": [{"op": "COUNT"}]}'


def test_an_unfinished_answer_fails():
    live = QueryReader(["a"], "json")
    live.push('{"breakdowns": ["a"], "limit"')
    with pytest.raises(QuerySyntaxError):
        live.finish(FinishReason.STOP)
