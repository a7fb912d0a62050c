"""Narrows schemas so that a model cannot generate endlessly where the schema's author did not intend it.

Every value that the narrowed schema allows is also allowed by the original. Two things change:

- An object that lists its properties and does not mention others is closed (`"additionalProperties": false`), because
  JSON Schema would let a model invent properties without end. Set it to `true` to keep an object open.
- An integer without bounds has at most 19 digits, because JSON Schema would let a model repeat a digit without end.
"""

from __future__ import annotations

import copy
import json
from typing import Any, Final

from serving.constraints import JsonSchemaConstraint
from serving.grammar.schema_tree import Node, same_value_groups, types_of, walk

MAX_INTEGER: Final = 9_000_000_000_000_000_000  # about the largest bound that llguidance supports; 64-bit ids fit

# An object with one of these keywords defines itself which, or how many, other properties it has.
_SPEAKS_OF_OTHERS: Final = (
    "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties",
)  # fmt: skip
_OBJECT_KEYWORDS: Final = ("properties", "required", "dependentRequired", *_SPEAKS_OF_OTHERS)
_TESTS: Final = ("not", "if", "contains")  # narrowing what a value is tested with might allow more
_ANNOTATIONS: Final = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated")
)


def schema_constraint(schema: Node | bool, item_separator: str, key_separator: str) -> JsonSchemaConstraint:
    """The constraint for answers of a schema, which is narrowed."""
    text = json.dumps(schema, ensure_ascii=False)
    if not isinstance(schema, dict):
        return JsonSchemaConstraint(text, item_separator, key_separator)
    try:
        kept = json.dumps(narrowed(schema), ensure_ascii=False)
    except RecursionError:
        kept = text  # the compiler refuses a schema that is nested so deeply, and says why
    # A narrowed alternative of `oneOf` matches fewer values, so that another one may be the only one that does.
    original = text if '"oneOf"' in text and kept != text else None
    return JsonSchemaConstraint(kept, item_separator, key_separator, original)


def narrowed(schema: Node) -> Node:
    """A narrowed copy of the schema."""
    root: Node = copy.deepcopy(schema)
    combined = _combined(root)
    tested = {id(part) for _, node in walk(root) for name in _TESTS for _, part in walk(node.get(name))}
    for _, node in walk(root):
        if id(node) in tested:
            continue
        if id(node) not in combined and _is_open_by_silence(node):
            node["additionalProperties"] = False
        if _is_endless_integer(node):
            if not {"minimum", "exclusiveMinimum"} & node.keys():
                node["minimum"] = -MAX_INTEGER
            if not {"maximum", "exclusiveMaximum"} & node.keys():
                node["maximum"] = MAX_INTEGER
    return root


def allows_anything(schema: Any) -> bool:
    """Whether a schema allows any value."""
    return schema is True or (isinstance(schema, dict) and not schema.keys() - _ANNOTATIONS)


def _combined(root: Node) -> set[int]:
    """Python ids of schemas that describe only a part of an object; they cannot be closed, as others add to them."""
    combined: set[int] = set()
    waiting: list[Node] = []
    for _, node in walk(root):
        groups = same_value_groups(root, node)
        if len(groups) + any(name in node for name in _OBJECT_KEYWORDS) > 1:
            combined.add(id(node))
            waiting += [member for group in groups for member in group]
    while waiting:
        node = waiting.pop()
        if id(node) not in combined:
            combined.add(id(node))
            waiting += [member for group in same_value_groups(root, node) for member in group]
    return combined


def _is_open_by_silence(node: Node) -> bool:
    properties, required = node.get("properties"), node.get("required", [])
    if not isinstance(properties, dict) or any(name in node for name in _SPEAKS_OF_OTHERS):
        return False
    return isinstance(required, list) and all(name in properties for name in required if isinstance(name, str))


def _is_endless_integer(node: Node) -> bool:
    kinds = types_of(node)
    return "integer" in kinds and "number" not in kinds and not {"multipleOf", "enum", "const"} & node.keys()
