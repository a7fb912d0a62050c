"""Separators and property order are derived from texts that were written with them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.answer_format.derive import AnswerFormat, derive_format
from pipeline.answer_format.errors import ExamplesError
from pipeline.answer_format.example_answers import parse_answer, read_answers
from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR
from tests.pipeline.answer_format.shapes import draw_kind
from tests.tasks.schema.schemas import INVOICE

WRITTEN = st.sampled_from([(", ", ": "), (",", ":"), (",", ": "), (" , ", " : "), (",  ", ":\t")])
LINE = {"sku": "AB12", "count": 2}


def derive(schema: Any, texts: list[str]) -> AnswerFormat:
    return derive_format(schema, [parse_answer(f"x:{i}", text) for i, text in enumerate(texts, 1)])


def dump(value: Any, written: tuple[str, str] = (", ", ": ")) -> str:
    return json.dumps(value, ensure_ascii=False, separators=written)


@settings(deadline=None)
@given(st.integers(0, 2**32), WRITTEN)
def test_the_derived_form_allows_every_example(seed: int, written: tuple[str, str]) -> None:
    schema, make = draw_kind(seed)
    found = derive(schema, [dump(make(), written) for _ in range(30)])
    assert found.refused == ()
    assert found.notes == ()
    assert found.item_separator in (written[0], ITEM_SEPARATOR)
    assert found.key_separator in (written[1], KEY_SEPARATOR)
    # Only the order of properties changed.
    assert json.dumps(found.schema, sort_keys=True) == json.dumps(schema, sort_keys=True)


@given(st.permutations(["vendor", "total", "paid", "lines", "note"]), st.permutations(["sku", "count"]))
def test_the_order_of_the_examples_is_recovered(order: list[str], inner: list[str]) -> None:
    values = {"vendor": "x", "total": 1, "paid": True, "lines": [{name: LINE[name] for name in inner}], "note": None}
    found = derive(INVOICE, [dump({name: values[name] for name in order})])
    assert list(found.schema["properties"]) == order
    assert list(found.schema["$defs"]["Line"]["properties"]) == inner
    assert list(INVOICE["properties"]) == ["vendor", "total", "paid", "lines", "note"]


@given(st.permutations(list("abcdef")), st.randoms(use_true_random=False))
def test_an_order_is_combined_from_partial_orders(order: list[str], rng: random.Random) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in "abcdefz"}}
    pairs = [order[i : i + 2] for i in range(5)]
    found = derive(schema, [dump(dict.fromkeys(pair, 1)) for pair in rng.sample(pairs, 5)])
    assert list(found.schema["properties"]) == [*order, "z"]


def test_the_majority_decides_and_exceptions_are_reported() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}
    found = derive(schema, ['{"a": 1, "b": 2}', '{"a": 1, "b": 2}', '{"b": 2, "a": 1}'])
    assert list(found.schema["properties"]) == ["a", "b"]
    assert found.notes == ('#: "a" now comes before "b", as in 2 objects; in 1 it comes after',)
    assert [line.split(":")[1] for line in found.refused] == ["3"]


def test_mixed_separators_are_all_allowed() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    found = derive(schema, ["[1, 2]", "[1,2]"])
    assert (found.item_separator, found.refused) == (",[ ]?", ())
    assert "',' 1 times" in found.notes[0]
    found = derive(schema, ["[1 ,2]", "[1,2]", "[1,  2]"])
    assert found.refused == ()


def test_separators_that_never_occur_keep_their_defaults() -> None:
    found = derive({"type": "array", "items": {"type": "integer"}}, ["[1]"])
    assert (found.item_separator, found.key_separator) == (ITEM_SEPARATOR, KEY_SEPARATOR)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{\n  "a": 1\n}', "is pretty-printed (white space at '{')"),
        ('{"a": [1,\n2]}', "is pretty-printed (white space at ',')"),
        ('{ "a": 1}', "is pretty-printed (white space at '{')"),
        ('{"a": 1 }', "is pretty-printed (white space at '}')"),
        (' {"a": 1}', "has white space around its JSON"),
        ('```json\n{"a": 1}\n```', "write the JSON without the code fence"),
        ("total: 5", "is not JSON"),
    ],
)
def test_answers_that_no_constraint_can_follow_are_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(ExamplesError) as caught:
        derive({"type": "object"}, ['{"b": 1}', text])
    assert problem in str(caught.value)
    assert "x:2" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": "caf\\u00e9"}', "json.dumps(answer, ensure_ascii=False)"),
        ('{"a": 5}', "does not allow '5}'"),
        ('{"a": "x", "b": 1}', "does not allow"),
    ],
)
def test_answers_outside_the_constraint_are_reported(text: str, problem: str) -> None:
    found = derive({"type": "object", "properties": {"a": {"type": "string"}}}, ['{"a": "x"}', text])
    assert len(found.refused) == 1
    assert problem in found.refused[0]


def test_the_forms_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    lines = [
        '{"b":1,"a":2}',
        json.dumps({"input": {"text": "x"}, "output": '{"b":1,"a":2}'}),
        json.dumps({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": '{"b":1,"a":2}'}]}),
        json.dumps({"input": "x", "output": {"b": 1, "a": 2}}),
    ]
    path.write_text("\n\n".join(lines))
    examples = read_answers(path)
    assert [example.value for example in examples] == [{"b": 1, "a": 2}] * 4
    assert [example.text for example in examples] == ['{"b":1,"a":2}'] * 3 + [None]
    assert examples[3].place == "examples.jsonl:7"


def test_values_without_text_give_the_order_and_a_message_about_separators(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text('{"input": "x", "output": {"b": 1, "a": 2}}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    found = derive_format(schema, read_answers(path))
    assert list(found.schema["properties"]) == ["b", "a"]
    assert (found.item_separator, found.key_separator) == (ITEM_SEPARATOR, KEY_SEPARATOR)
    assert "separators cannot be seen" in found.notes[0]


@pytest.mark.parametrize(
    "lines",
    [
        ['{"input": "a", "output": "{}"}', '{"input": "b"}'],
        ['{"input": "a"}'],
        ['{"messages": [{"role": "user", "content": "a"}]}'],
    ],
)
def test_a_line_of_training_data_without_an_answer_is_named(tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(lines))
    with pytest.raises(ExamplesError, match=f"data.jsonl:{len(lines)} has no answer"):
        read_answers(file)
    file.write_text('{"input": "a", "kind": 1}')  # an answer whose schema has an input
    assert read_answers(file)[0].value == {"input": "a", "kind": 1}
