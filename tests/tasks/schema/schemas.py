"""Schemas of many kinds, each with values that it allows, in the order of its properties."""

from __future__ import annotations

from typing import Any

INVOICE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Invoice",
    "type": "object",
    "properties": {
        "vendor": {"type": "string", "maxLength": 12},
        "total": {"type": "number"},
        "paid": {"type": "boolean"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "maxItems": 3},
        "note": {"type": ["string", "null"], "maxLength": 8},
    },
    "required": ["vendor", "total", "paid", "lines"],
    "$defs": {
        "Line": {
            "type": "object",
            "properties": {"sku": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"}, "count": {"type": "integer"}},
            "required": ["sku", "count"],
        }
    },
}

# name: (schema, values)
SCHEMAS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "invoice": (
        INVOICE,
        [
            {"vendor": "Ärzte & Co", "total": 12.5, "paid": True, "lines": [{"sku": "AB12", "count": 2}], "note": None},
            {"vendor": "a, b: c", "total": -3, "paid": False, "lines": []},
        ],
    ),
    "enum": ({"enum": ["red", "green, dark", 3, None]}, ["red", "green, dark", 3, None]),
    "flat list": ({"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 4}, [[], ["a"], ["a", "b", "a"]]),
    "string": ({"type": "string", "maxLength": 9}, ["", 'a "b" \\', "naïve\n"]),
    "tagged union": (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "circle"}, "radius": {"type": "integer"}},
                    "required": ["kind", "radius"],
                },
                {
                    "type": "object",
                    "properties": {"kind": {"const": "square"}, "side": {"type": "integer"}},
                    "required": ["kind", "side"],
                },
            ]
        },
        [{"kind": "circle", "radius": 2}, {"kind": "square", "side": -7}],
    ),
    "recursive": (
        {
            "$ref": "#/definitions/tree",
            "definitions": {
                "tree": {
                    "type": "object",
                    "properties": {
                        "name": {"enum": ["x", "y"]},
                        "children": {"type": "array", "items": {"$ref": "#/definitions/tree"}, "maxItems": 2},
                    },
                    "required": ["name"],
                }
            },
        },
        [{"name": "x"}, {"name": "y", "children": [{"name": "x", "children": []}, {"name": "x"}]}],
    ),
    "all of": (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
            ]
        },
        [{"a": 1, "b": True}],
    ),
    "map": (
        {"type": "object", "patternProperties": {"^[a-z]{1,3}$": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"a": 1, "bcd": 22}],
    ),
    "open object": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True},
        [{"a": 1, "more": {"b": [1.5, None]}}],
    ),
    "tuple": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False, "minItems": 2},
        [[5, False]],
    ),
}

# item separator, key separator, how json.dumps writes them
SEPARATORS = {
    "spaced": (", ", ": ", (", ", ": ")),
    "compact": (",", ":", (",", ":")),
    "optional, spaced": (",[ ]?", ":[ ]?", (", ", ": ")),
    "optional, compact": (",[ ]?", ":[ ]?", (",", ":")),
    "mixed": (",", ": ", (",", ": ")),
}
