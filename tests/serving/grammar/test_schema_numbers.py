"""Numbers of a schema mean what they say, or are refused: llguidance computes with 64-bit floats."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from serving.constraints import JsonSchemaConstraint
from serving.errors import GrammarError
from serving.grammar import check_constraint
from serving.grammar.grammar_text import grammar_text

TOKENIZER = LLTokenizer("byte")
LARGE = 2**53


def allows(schema: Any, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar_text(JsonSchemaConstraint(json.dumps(schema))), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@given(st.data())
def test_an_integer_outside_its_bounds_is_never_allowed(data):
    numbers = st.one_of(st.integers(-(2**65), 2**65), st.integers(-300, 300), st.integers(LARGE - 9, LARGE + 99))
    names = data.draw(st.sampled_from([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")]))
    low, high = sorted(data.draw(st.tuples(numbers, numbers)))
    schema = {"type": "integer", names[0]: low, names[1]: high}
    if step := data.draw(st.sampled_from([None, 1, 3, 10])):
        schema["multipleOf"] = step
    near = st.integers(-5, 5)
    value = data.draw(st.sampled_from([low, high, 0])) + data.draw(near)
    inside = low <= value <= high if names[0] == "minimum" else low < value < high
    is_valid = inside and value % (step or 1) == 0
    try:
        allowed = allows(schema, str(value))
    except (GrammarError, AssertionError):
        return  # refused as a whole
    assert not allowed or is_valid
    is_small = max(abs(low), abs(high)) <= LARGE
    if is_valid and is_small and (step is None or high - low <= 500):
        assert allowed


def test_bounds_beyond_floats_are_refused_or_narrowed():
    exact = {"type": "integer", "minimum": LARGE + 1, "maximum": LARGE + 1}
    with pytest.raises(
        GrammarError, match="refused at #/properties/a: none of the integers that it allows can be kept exactly"
    ):
        check_constraint(JsonSchemaConstraint(json.dumps({"type": "object", "properties": {"a": exact}})))
    unsigned = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
    assert allows(unsigned, str(2**63 - 1024))
    assert not allows(unsigned, str(2**64))


@pytest.mark.parametrize("kind", ["integer", ["integer", "null"]])
def test_numbers_of_any_size_and_nullable_ones(kind):
    bounded = {"type": kind, "minimum": -(10**400), "maximum": 10**400}
    assert allows(bounded, str(2**62))
    assert not allows(bounded, str(10**400))
    assert allows({"type": kind, "multipleOf": 1, "minimum": -(10**18), "maximum": 10**19}, "9")
    multiples = {"type": kind, "multipleOf": 7, "minimum": -14, "maximum": 7}
    assert [number for number in range(-20, 20) if allows(multiples, str(number))] == [-14, -7, 0, 7]
    assert allows(multiples, "null") == (kind != "integer")
    with pytest.raises(GrammarError, match="can be kept exactly"):
        grammar_text(JsonSchemaConstraint(json.dumps({"type": kind, "minimum": LARGE + 1, "maximum": LARGE + 1})))


@pytest.mark.parametrize("depth", [250, 400, 900])
def test_a_deep_schema_is_refused_in_words(depth):
    with pytest.raises(GrammarError, match=r"nested too deeply|recursion limit"):
        check_constraint(JsonSchemaConstraint('{"items": ' * depth + "{}" + "}" * depth))


@pytest.mark.parametrize("schema", [{"const": LARGE + 1}, {"enum": ["a", LARGE + 1]}])
def test_constants_beyond_floats_are_refused(schema):
    with pytest.raises(
        GrammarError, match=r"9007199254740993 is an integer over 2\^53 that cannot be kept exactly; make it a string"
    ):
        check_constraint(JsonSchemaConstraint(json.dumps(schema)))


def test_negative_multiples_are_allowed():
    schema = {"type": "integer", "multipleOf": 10, "minimum": -100, "maximum": -10}
    check_constraint(JsonSchemaConstraint(json.dumps(schema)))
    assert [number for number in range(-115, 5) if allows(schema, str(number))] == list(range(-100, 0, 10))


def test_properties_may_have_the_names_of_keywords():
    schema = {"type": "object", "properties": {"const": {"type": "integer", "maximum": 5}, "enum": {"type": "null"}}}
    assert allows(schema, '{"const": 5, "enum": null}')
    assert not allows(schema, '{"const": 6, "enum": null}')
