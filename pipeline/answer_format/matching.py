"""Decides which of a schema's alternatives a value belongs to."""

from __future__ import annotations

import json
from typing import Any, Final

from tasks.schema_tree import Node, same_value_groups

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "integer": (int,), "number": (int, float),
}  # fmt: skip


def fits(root: Node, schema: Any, value: Any) -> bool:
    """Whether the value has the schema's type, constants and required properties, also inside objects and arrays.

    This tells alternatives apart. It is not a validator: bounds, patterns and formats are not checked.
    """
    return _fits(root, schema, value, frozenset())


def _fits(root: Node, schema: Any, value: Any, inside: frozenset[int]) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    if id(schema) in inside:  # references in a circle
        return True
    inside |= {id(schema)}
    return (
        _is_of_type(schema.get("type"), value)
        and ("const" not in schema or _same(schema["const"], value))
        and ("enum" not in schema or any(_same(item, value) for item in schema["enum"]))
        and all(any(_fits(root, member, value, inside) for member in g) for g in same_value_groups(root, schema))
        and (not isinstance(value, dict) or _object_fits(root, schema, value))
        and (not isinstance(value, list) or _list_fits(root, schema, value))
    )


def _object_fits(root: Node, schema: Node, value: dict[str, Any]) -> bool:
    properties = schema.get("properties", {})
    if not all(name in value for name in schema.get("required", [])):
        return False
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    if is_closed and not value.keys() <= properties.keys():
        return False
    return all(fits(root, properties[name], part) for name, part in value.items() if name in properties)


def _list_fits(root: Node, schema: Node, value: list[Any]) -> bool:
    prefix = schema.get("prefixItems", [])
    rest = schema.get("items", True)
    return all(fits(root, prefix[i] if i < len(prefix) else rest, part) for i, part in enumerate(value))


def _is_of_type(kinds: Any, value: Any) -> bool:
    if kinds is None:
        return True
    names = kinds if isinstance(kinds, list) else [kinds]
    if isinstance(value, bool):
        return "boolean" in names
    if isinstance(value, float) and value.is_integer() and "integer" in names:
        return True
    return any(isinstance(value, _TYPES.get(name, ())) for name in names)


def _same(first: Any, second: Any) -> bool:
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
