"""An error in a JSON schema is reported with its location, for any keyword that the compiler refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serving.constraints import JsonSchemaConstraint
from serving.errors import GrammarError
from serving.grammar import check_constraint
from serving.grammar.trial import find_fault

BACK = {"type": "string", "pattern": r"(a)\1"}  # no linear time
WRONG = [
    (BACK, "#/pattern"),
    ({"not": BACK}, "#/not/pattern"),
    ({"if": BACK, "then": {"minLength": 1}}, "#/if/pattern"),
    ({"properties": {"a": {"type": "array", "contains": BACK}}}, "#/properties/a/contains/pattern"),
    ({"patternProperties": {r"(a)\1": {}}, "type": "object"}, r"#/patternProperties/(a)\1"),
    (
        {"properties": {"x/y~": {"items": {"anyOf": [{"type": "integer"}, BACK]}}}},
        "#/properties/x~1y~0/items/anyOf/1/pattern",
    ),
    ({"oneOf": [{"type": "integer"}, BACK]}, "#/oneOf/1/pattern"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "#/allOf"),
    ({"$ref": "http://example.com/s"}, "#/$ref"),
    ({"type": "object", "properties": {"a": {"$ref": "#/nope"}}}, "#/properties/a/$ref"),
    ({"type": "wrong"}, "#/type"),
    ({"properties": {"a": {"type": ["string", "wrong"]}}}, "#/properties/a/type/1"),
    ({"properties": {"a": {"enum": "x"}}}, "#/properties/a/enum"),
    ({"properties": {"a": {"items": 3}}}, "#/properties/a/items"),
    ({"properties": {"a": {"minimum": "x"}}}, "#/properties/a/minimum"),
    ({"type": "integer", "minimum": 5, "maximum": 2}, "#"),
    (
        {"type": "object", "properties": {"a": {"minimum": 5, "maximum": 2, "type": "integer"}}, "required": ["a"]},
        "#/properties/a",
    ),
    (
        {"$defs": {"A": {"properties": {"b": {"$ref": "#/$defs/B"}}}, "B": BACK}, "$ref": "#/$defs/A"},
        "#/$defs/B/pattern",
    ),
    (
        {"properties": {"x": {"$ref": "#/definitions/a~1b"}}, "definitions": {"a/b": BACK, "c": {}}},
        "#/definitions/a~1b/pattern",
    ),
    ({"additionalProperties": {"type": "string", "pattern": "(?=a)b"}}, "#/additionalProperties/pattern"),
    ({"prefixItems": [{"type": "string"}, {"not": BACK}]}, "#/prefixItems/1/not/pattern"),
    ({"patternProperties": {"^x": BACK}}, "#/patternProperties/^x/pattern"),
    (
        {"properties": {"ok": {"oneOf": [{"type": "string"}, {"type": "null"}]}, "bad": BACK}},
        "#/properties/bad/pattern",
    ),
    (
        {"properties": {"type": {"examples": [BACK]}, "x": {"default": BACK, **BACK}}},
        "#/properties/x/pattern",
    ),
    ({"x-guidance": {"whitespace_flexible": True}}, "#/x-guidance"),
    ({"properties": {f"p{i}": {"type": "string"} for i in range(500)} | {"z": BACK}}, "#/properties/z/pattern"),
]


@pytest.mark.parametrize(("schema", "pointer"), WRONG, ids=[pointer for _, pointer in WRONG])
def test_the_location_is_named(schema: dict, pointer: str) -> None:
    with pytest.raises(GrammarError) as caught:
        check_constraint(JsonSchemaConstraint(json.dumps(schema)))
    assert f" at {pointer}: " in str(caught.value)
    assert len(str(caught.value)) < 500


def test_locating_needs_no_list_of_keywords() -> None:
    """With a compiler that refuses only an invented keyword."""

    def error_of(part: Any) -> str:
        return "no!" if '"strange"' in json.dumps(part) else ""

    schema = {"a": [1, {"b": []}, {"c": {"x": 1, "strange": {}, "y": 2}}], "d": {"e": "strangest"}}
    assert find_fault(schema, error_of) == "#/a/2/c/strange"


def test_one_of_several_errors_is_named() -> None:
    schema = {"properties": dict.fromkeys("abc", BACK)}
    with pytest.raises(GrammarError, match=r"at #/properties/[abc]/pattern:"):
        check_constraint(JsonSchemaConstraint(json.dumps(schema)))
