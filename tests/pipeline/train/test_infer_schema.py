"""The inferred schema allows every answer, and is narrow only where the answers show it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.train.infer_schema import Shape
from pipeline.train.rewrite_answers import AnswerWriter
from tasks.json_text import WrittenFloat
from tasks.property_order import reordered
from tests.pipeline.train.example_files import addresses, utterances

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["a", "b"])
NUMBERS = (
    st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["12.50", "1e5", "-0.0", "1E+2"]).map(WrittenFloat)
)
KEYS = st.sampled_from(["a", "b", "c", "ä", 'q"']) | TEXTS
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


def shape_of(answers: Sequence[Any], inputs: Sequence[str] | None = None) -> Shape:
    shape = Shape()
    for index, answer in enumerate(answers):
        shape.add(answer, inputs[index] if inputs else "", index % 2)
    return shape


def field(values: Sequence[Any], inputs: Sequence[str] | None = None) -> Any:
    return shape_of([{"f": value} for value in values], inputs).schema()["properties"]["f"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=4), min_size=1, max_size=25), st.integers(1, 12))
def test_schema_and_grammar_allow_every_answer(answers: list[dict[str, Any]], times: int) -> None:
    schema, _ = reordered(shape_of(answers * times).schema(), answers)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator, writer = jsonschema.Draft202012Validator(schema), AnswerWriter(schema)
    for answer in answers:
        validator.validate(answer)
        text = writer.write(answer)
        assert writer.fault(text) is None
        assert json.loads(text) == answer


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], {"type": "integer"}),
        ([1, WrittenFloat("2.0")], {"type": "number"}),
        ([10**30], {"type": "number"}),
        ([True, None], {"type": ["boolean", "null"]}),
        ([None], {"type": "null"}),
        (["x", 1, None], {"type": ["string", "integer", "null"], "maxLength": 40}),
        (["x" * 33], {"type": "string", "maxLength": 70}),
        (["x" * 30_000], {"type": "string"}),
        ([[]], {"type": "array", "maxItems": 0}),
        ([[1, 2], []], {"type": "array", "items": {"type": "integer"}, "maxItems": 6}),
        ([{}], {"type": "object", "properties": {}, "additionalProperties": False}),
    ],
)
def test_types_and_limits(values: list[Any], expected: Any) -> None:
    assert field(values) == expected


def test_required_and_optional_keys_of_objects_in_lists() -> None:
    assert field([[{"a": 1, "b": "x"}], [{"a": 2}, {"a": None}]])["items"] == {
        "type": "object",
        "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "string", "maxLength": 40}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_an_enum_has_few_values_that_repeat_and_are_not_copied() -> None:
    classes = ["high", "low", "low", "high", "middle", "middle"] * 10
    assert field(classes) == {"enum": ["high", "low", "middle"]}
    assert field([*classes, None]) == {"enum": ["high", "low", "middle", None]}
    text = {"type": "string", "maxLength": 40}
    assert field([*classes, "odd one"]) == text  # a value of one half only
    assert field(classes[:12]) == text  # too few answers
    assert field(classes, [f"the {word} one" for word in classes]) == text  # copied from the input
    assert field([f"value {i // 2}" for i in range(100)]) == text  # many values
    assert field([*classes, 5])["type"] == ["string", "integer"]


def test_keys_that_hardly_repeat_are_data() -> None:
    prices = [{"prices": {f"item {3 * i + k}": 5 + k for k in range(3)}} for i in range(100)]
    expected = {"type": "object", "additionalProperties": {"type": "integer"}}
    few, many = shape_of(prices[:10]).schema(), shape_of(prices).schema()
    assert few["properties"]["prices"] == many["properties"]["prices"] == expected
    writer = AnswerWriter(many)
    assert all(writer.fault(writer.write(answer)) is None for answer in [*prices, {"prices": {"new": 7}}])


def test_memory_does_not_grow_with_texts_or_keys() -> None:
    shape = shape_of([{"id": f"id {i}", "more": {f"key {i}": f"value {i}"}} for i in range(3_000)])
    assert shape.properties["id"].texts is None
    assert not shape.properties["more"].properties


def test_schemas_of_utterances_and_addresses() -> None:
    spoken = utterances(60)
    inputs = [example["input"] for example in spoken]
    schema = shape_of([example["output"] for example in spoken], inputs).schema()
    assert schema["properties"]["intent"] == {"enum": ["book", "weather"]}
    assert schema["required"] == ["intent", "slots"]
    slots = schema["properties"]["slots"]
    assert (sorted(slots["properties"]), slots["required"]) == (["city", "dish", "guest"], ["city", "guest"])
    assert {part["type"] for part in slots["properties"].values()} == {"string"}
    places = shape_of([example["output"] for example in addresses()]).schema()
    assert places["required"] == ["number", "street", "city", "state"]
    assert places["properties"]["state"] == {"type": ["string", "null"], "maxLength": 40}
