"""Schemas are narrowed only where they would allow endless answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLTokenizer

from serving.constraints import JsonSchemaConstraint
from serving.grammar import answer_checks, compile_constraint
from tasks.bounds import narrowed, schema_constraint
from tests.tasks.schema.schemas import SCHEMAS

BYTES = LLTokenizer("byte")
CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}}


def allows(schema: dict[str, Any], text: str) -> bool:
    """Whether the narrowed schema's grammar accepts the text."""
    constraint = JsonSchemaConstraint(json.dumps(narrowed(schema)))
    matcher = compile_constraint(constraint, BYTES)
    tokens = BYTES.tokenize_bytes(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    "schema",
    [
        CLOSED,
        {"anyOf": [CLOSED, {"type": "null"}]},
        {"$ref": "#/$defs/A", "$defs": {"A": CLOSED}},
        {"allOf": [{"$ref": "#/$defs/A"}], "description": "pydantic's way", "$defs": {"A": CLOSED}},
    ],
)
def test_an_object_with_listed_properties_is_closed(schema: dict[str, Any]) -> None:
    assert allows(schema, '{"a": "x"}')
    assert not allows(schema, '{"a": "x", "b": 1}')


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (CLOSED | {"additionalProperties": True}, '{"a": "x", "b": 1}'),
        ({"type": "object"}, '{"b": 1}'),
        (SCHEMAS["all of"][0], '{"a": 1, "b": true}'),
        (
            {"$ref": "#/$defs/A", "properties": {"b": {"type": "boolean"}}, "$defs": {"A": CLOSED}},
            '{"a": "x", "b": true}',
        ),
        ({"allOf": [{"$ref": "#/$defs/A"}, {"required": ["b"]}], "$defs": {"A": CLOSED}}, '{"a": "x", "b": 1}'),
        (CLOSED | {"required": ["b"]}, '{"a": "x", "b": 1}'),
        (CLOSED | {"required": ["a"], "minProperties": 2}, '{"a": "x", "b": 1}'),
        (CLOSED | {"patternProperties": {"^b$": {"type": "integer"}}}, '{"a": "x", "b": 1}'),
    ],
)
def test_an_object_that_declares_other_properties_stays_open(schema: dict[str, Any], text: str) -> None:
    assert allows(schema, text)


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    schema = {"type": "object", "properties": {"properties": {"type": "integer"}, "allOf": {"type": "boolean"}}}
    assert allows(schema, '{"properties": 3, "allOf": true}')
    assert not allows(schema, '{"properties": 3, "allOf": true, "x": 1}')


def test_integers_have_a_limit() -> None:
    assert allows({"type": "integer"}, "-8999999999999999999")
    assert allows({"type": ["integer", "null"]}, "null")
    assert not allows({"type": "integer"}, "1" * 20)
    assert not allows({"type": "array", "items": {"type": "integer", "minimum": 0}}, f"[{'1' * 20}]")
    assert allows({"type": "integer", "minimum": 3}, "3")
    assert not allows({"type": "integer", "minimum": 3}, "2")
    assert not allows({"type": "integer", "exclusiveMaximum": 3}, "3")


def test_numbers_are_as_the_documentation_says() -> None:
    assert allows({"type": "number"}, "0." + "3" * 60)
    assert allows({"type": "number", "multipleOf": 0.5}, "1.5")
    assert not allows({"type": "number", "multipleOf": 0.5}, "-1.5")


@pytest.mark.parametrize("keyword", ["not", "if", "contains"])
def test_what_a_value_is_tested_with_is_not_narrowed(keyword: str) -> None:
    """A narrowed `not` would allow more."""
    schema = {"type": "array", "items": CLOSED, keyword: CLOSED | {"properties": {"a": {"type": "integer"}}}}
    assert narrowed(schema)[keyword] == schema[keyword]
    assert narrowed(schema)["items"]["additionalProperties"] is False


def test_an_answer_is_also_checked_with_the_schema_that_was_narrowed() -> None:
    """Closed alternatives exclude each other; those of the given schema do not."""
    given = {"oneOf": [CLOSED, {"type": "object", "properties": {"b": {"type": "string"}}}]}
    constraint = schema_constraint(given, ", ", ": ")
    checks = answer_checks(constraint)
    assert checks is not None
    assert checks.first_error({"a": 1}) is None, "it is no instance of the first"
    assert checks.first_error({"a": "x"}) == "#/oneOf", "it is one of both"
    closed = [part | {"additionalProperties": False, "required": list(part["properties"])} for part in given["oneOf"]]
    assert answer_checks(schema_constraint({"oneOf": closed}, ", ", ": ")) is None


def test_the_schema_itself_is_not_changed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    narrowed(schema)
    assert schema == {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_a_circle_of_references_ends() -> None:
    assert narrowed({"$ref": "#", "properties": {"a": {"$ref": "#"}}})
