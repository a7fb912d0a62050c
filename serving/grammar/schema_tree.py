"""Walks through a JSON Schema, and finds the schemas that apply to the same value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

Node = dict[str, Any]  # a schema that is an object; `true` and `false` have no parts
DATA: Final = ("const", "enum", "default", "examples")  # keywords whose values are no schemas
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # of names to schemas

_ALTERNATIVES: Final = ("anyOf", "oneOf")
_ALSO: Final = ("not", "if", "then", "else")
_PARTS: Final = (
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip


def same_value_groups(root: Any, node: Node) -> list[list[Node]]:
    """Groups of schemas that apply to the same value as `node`: the value must match at least one of each group.

    References refer to `root`, the whole schema.
    """
    groups = [[item] for item in _list(node, "allOf")]
    groups += [group for name in _ALTERNATIVES if (group := _list(node, name))]
    groups += [[node[name]] for name in ("then", "else") if isinstance(node.get(name), dict)]
    groups += [[value] for value in (*_values(node, "dependentSchemas"), *_values(node, "dependencies"))]
    if (target := resolve(root, node.get("$ref"))) is not None:
        groups.append([target])
    return groups


def walk(node: Any, path: str = "#") -> Iterator[tuple[str, Node]]:
    """A schema and all schemas inside it, each with its JSON pointer. References are not followed."""
    if not isinstance(node, dict):
        return
    yield path, node
    for step, part in parts(node):
        yield from walk(part, f"{path}/{step}")


def parts(node: Node) -> Iterator[tuple[str, Node]]:
    """The schemas directly inside a schema, each with its place, such as `properties/a`."""
    for name in (*_ALSO, *_PARTS):
        if isinstance(part := node.get(name), dict):
            yield name, part
    for name in ("allOf", *_ALTERNATIVES, "prefixItems", "items"):
        for index, item in enumerate(items if isinstance(items := node.get(name), list) else ()):
            if isinstance(item, dict):
                yield f"{name}/{index}", item
    for name in (*MAPS, "dependencies"):
        for key, item in named.items() if isinstance(named := node.get(name), dict) else ():
            if isinstance(item, dict):
                yield f"{name}/{escaped(key)}", item


def types_of(node: Node) -> list[Any]:
    """The types that a schema names; [None] if it names none."""
    kinds = node.get("type")
    return kinds if isinstance(kinds, list) else [kinds]


def escaped(key: str) -> str:
    """A key as a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def unescaped(step: str) -> str:
    """The key that a step of a JSON pointer stands for."""
    return step.replace("~1", "/").replace("~0", "~")


def resolve(root: Any, ref: Any) -> Node | None:
    """The schema that a reference such as `#/$defs/Item` refers to; None for any other kind of reference."""
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        return None
    found = root
    for step in ref.split("/")[1:]:
        key = unescaped(unquote(step))
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict):
            found = found.get(key)
        else:
            return None
    return found if isinstance(found, dict) else None


def _list(node: Node, name: str) -> list[Node]:
    value = node.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _values(node: Node, name: str) -> list[Node]:
    value = node.get(name)
    return [item for item in value.values() if isinstance(item, dict)] if isinstance(value, dict) else []
