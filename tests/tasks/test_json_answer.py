"""How a JSON answer is streamed, and which answers are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from serving.types import FinishReason
from tasks.errors import OutputError
from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR, ItemSeparator, JsonReader, KeySeparator

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


class Separators(BaseModel):
    """As the options of tasks have them."""

    item: ItemSeparator = ITEM_SEPARATOR
    key: KeySeparator = KEY_SEPARATOR


@pytest.mark.parametrize("blanks", ["{}", "{} ", "{}[ ]?", " {} ", "({}|{} )", "{}[ \\t]*", "{}\\x20{{0,3}}"])
def test_separators_that_make_json(blanks: str) -> None:
    Separators(item=blanks.format(",", ","), key=blanks.format(":", ":"))


@pytest.mark.parametrize(
    "item", ["", ",?", ";", ",\\s?", "(,|;)", ",{2}", ".", ",\n", "/,/", "(", ",(?= )", "\\d", ":"]
)
def test_separators_that_do_not_are_refused(item: str) -> None:
    with pytest.raises(ValidationError, match="one that works: ',', ', ' or "):
        Separators(item=item)


@given(json_values, st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_all_text_is_streamed_at_once(value: object, sizes: list[int]) -> None:
    text, reader, shown = json.dumps(value), JsonReader(), ""
    rest = text
    for size in [*sizes, len(rest)]:
        shown += reader.push(rest[:size])
        rest = rest[size:]
    assert shown == text
    assert reader.finish(FinishReason.STOP) == ""


@given(json_values.filter(lambda v: isinstance(v, dict | list) and v), st.data())
def test_a_truncated_answer_is_an_error(value: object, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text) - 1))
    reader = JsonReader()
    reader.push(text[:cut])
    with pytest.raises(OutputError, match=f"not complete after {cut} characters"):
        reader.finish(FinishReason.LENGTH)


def test_an_answer_that_reached_max_tokens_is_an_error_even_if_it_parses() -> None:
    reader = JsonReader()
    reader.push("12")
    with pytest.raises(OutputError, match="not complete after 2 characters that end with '12'"):
        reader.finish(FinishReason.LENGTH)
    assert reader.finish(FinishReason.STOP) == ""


def test_an_answer_stopped_before_its_end_is_an_error() -> None:
    reader = JsonReader()
    reader.push('{"a": [1, ')
    with pytest.raises(OutputError, match=r"ended before it was complete .* stop_sequences"):
        reader.finish(FinishReason.STOP)


@pytest.mark.parametrize(
    ("text", "key"),
    [('{"name": "Ada", "country": "USA", "country": "UK"}', "country"), ('[{"b": {"a": 1, "\\u0061": 2}}]', "a")],
)
def test_an_answer_with_a_key_twice_in_one_object_is_an_error(text: str, key: str) -> None:
    """A server that we do not control may write one, with status 200."""
    reader = JsonReader()
    reader.push(text)
    with pytest.raises(OutputError, match=rf"the JSON has the key '{key}' twice in one object, .*additionalProperties"):
        reader.finish(FinishReason.STOP)


def test_a_key_may_be_in_several_objects() -> None:
    reader = JsonReader()
    reader.push('{"a": {"a": [{"a": 1}, {"a": 2}]}}')
    assert reader.finish(FinishReason.STOP) == ""


def test_an_answer_that_is_nested_too_deeply_to_be_read_is_an_error() -> None:
    reader = JsonReader()
    reader.push("[" * 20_000 + "]" * 20_000)
    with pytest.raises(OutputError, match="the JSON is nested too deeply, after 40,000 characters"):
        reader.finish(FinishReason.STOP)
