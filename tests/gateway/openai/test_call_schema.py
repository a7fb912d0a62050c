"""Schemas of several functions in one: their references still hold, whatever their properties are called."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from gateway.openai.tool_calls import Function, call_schema

REFERENCE = {"$ref": "#/$defs/Number"}
DEFINITIONS = {"Number": {"type": "integer"}, "default": {"items": REFERENCE}}
NAMES = ("default", "enum", "const", "examples", "$ref", "properties", "other")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keyword", ["properties", "patternProperties"])
def test_references_hold_below_properties_that_are_called_as_keywords(name, keyword):
    key = name if keyword == "properties" else f"^{name.replace('$', '[$]')}$"
    parameters = {"type": "object", keyword: {key: REFERENCE}, "$defs": DEFINITIONS}
    schema = call_schema([Function(name="other"), Function(name="f", parameters=parameters)])
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"name": "f", "arguments": {name: 1}})
    assert not validator.is_valid({"name": "f", "arguments": {name: "a"}})


@pytest.mark.parametrize("keyword", ["$defs", "definitions", "dependentSchemas"])
def test_references_hold_below_definitions_that_are_called_as_keywords(keyword):
    parameters = {"type": "object", keyword: {"default": REFERENCE, "enum": {"properties": {"$ref": REFERENCE}}}}
    schema = call_schema([Function(name="f", parameters=parameters), Function(name="other")])
    moved = {"$ref": "#/anyOf/0/properties/arguments/$defs/Number"}
    arguments = schema["anyOf"][0]["properties"]["arguments"]
    assert arguments[keyword] == {"default": moved, "enum": {"properties": {"$ref": moved}}}


def test_values_that_look_as_references_stay():
    values = {"const": REFERENCE, "enum": [REFERENCE], "default": REFERENCE, "examples": [REFERENCE]}
    schema = call_schema([Function(name="f", parameters=values), Function(name="other")])
    assert schema["anyOf"][0]["properties"]["arguments"] == values
