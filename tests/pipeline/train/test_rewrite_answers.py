"""Answers are rewritten in the order of any schema, so that its grammar allows them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.train.rewrite_answers import AnswerWriter
from tasks.json_text import WrittenFloat
from tests.pipeline.answer_format.shapes import draw_kind


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_the_grammar_of_a_schema_allows_answers_that_were_written_in_another_order(seed: int) -> None:
    schema, make = draw_kind(seed)  # references, lists and alternatives; values are in another order than the schema
    writer = AnswerWriter(schema)
    for answer in [make() for _ in range(20)]:
        text = writer.write(answer)
        assert writer.fault(text) is None
        assert json.loads(text) == answer


NUMBER = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "order"),
    [
        ({"properties": {"a": NUMBER}, "required": ["d", "a", "c"], "additionalProperties": NUMBER}, "adcb"),
        ({"allOf": [{"properties": {"d": NUMBER}}], "properties": {"a": NUMBER, "b": NUMBER, "c": NUMBER}}, "dabc"),
        ({"properties": {"d": NUMBER}, "allOf": [{"properties": {"c": NUMBER, "b": NUMBER, "a": NUMBER}}]}, "dcba"),
        (
            {
                "anyOf": [{"$ref": "#/$defs/D"}, {"properties": {"z": NUMBER}, "required": ["z"]}],
                "properties": {"c": NUMBER, "b": NUMBER, "a": NUMBER},
                "$defs": {"D": {"properties": {"d": NUMBER}, "required": ["d"]}},
            },
            "dcba",
        ),
    ],
)
def test_keys_stand_where_the_keywords_of_the_schema_stand(schema: dict[str, Any], order: str) -> None:
    writer = AnswerWriter({"type": "object", **schema})
    text = writer.write(dict.fromkeys("abcd", 1))
    assert "".join(json.loads(text)) == order
    assert writer.fault(text) is None


def test_digits_separators_and_keys_that_no_schema_lists() -> None:
    writer = AnswerWriter(
        {"type": "object", "properties": {"b": {"type": "number"}}, "additionalProperties": {"type": "string"}}
    )
    text = writer.write({"z": "é\x7f", "b": WrittenFloat("1.50"), "a": "x"})
    assert text == '{"b": 1.50, "z": "é\\u007f", "a": "x"}'
    assert writer.fault(text) is None
    assert writer.fault('{"b": "x"}') == "after '{\"b\": ' the grammar does not allow '\"x\"}'"
