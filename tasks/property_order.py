"""Reorders the properties of a schema as example answers write them, and answers as a schema has them.

A grammar that is made from a schema allows properties only in the schema's order.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from serving.grammar.schema_tree import Node, same_value_groups, walk

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "integer": (int,), "number": (int, float),
}  # fmt: skip
Pairs = Counter[tuple[str, str]]  # (a, b) → number of objects in which a came before b


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


def reordered(schema: Node, values: Iterable[Any]) -> tuple[Node, list[str]]:
    """The schema with the properties of each object in the order of the values.

    Where values disagree, the more frequent order wins. Properties that no value has come last.

    Returns:
        The schema, and a message for each pair of properties that occurs in both orders.
    """
    root: Node = copy.deepcopy(schema)
    seen: dict[int, Pairs] = {}
    for value in values:
        for node, keys in _objects(root, root, value):
            pairs = seen.setdefault(id(node), Counter())
            pairs.update((a, b) for i, a in enumerate(keys) for b in keys[i:])
    conflicts = []
    for path, node in walk(root):
        if id(node) in seen:
            properties, pairs = node["properties"], seen[id(node)]
            order = _order(list(properties), pairs)
            conflicts += [f"{path}: {line}" for line in _conflicts(order, pairs)]
            node["properties"] = {name: properties[name] for name in order}
    return root, conflicts


def in_schema_order(schema: Node, value: Any) -> Any:
    """The value with the keys of each object in the order of the schema's grammar.

    That is: properties, those of alternatives and references where these stand; keys that are only required; others.
    """
    return _in_order(schema, [schema], value)


def _in_order(root: Node, schemas: Sequence[Any], value: Any) -> Any:
    """The value in the order of the schemas that apply to it."""
    if not isinstance(value, dict | list):
        return value
    known: dict[int, Node] = {}
    nodes = [node for schema in schemas for node in _schemas_of(root, schema, value, known)]
    if isinstance(value, list):
        return [_in_order(root, [_item_schema(node, i) for node in nodes], part) for i, part in enumerate(value)]
    listed = [name for schema in schemas for name in _listed(root, schema, value, frozenset())]
    required = [name for node in nodes for name in node.get("required", [])]
    return {
        name: _in_order(root, [_property_schema(node, name) for node in nodes], value[name])
        for name in dict.fromkeys([*listed, *required, *value])
        if name in value
    }


def _listed(root: Node, schema: Any, value: Any, inside: frozenset[int]) -> Iterator[str]:
    """The properties of a schema and of those that it applies to the same value, in the order of its keywords."""
    if not isinstance(schema, dict) or id(schema) in inside:
        return
    for keyword, content in schema.items():
        if keyword == "properties":
            yield from content
        for group in same_value_groups(root, {keyword: content}):
            for member in group:
                if len(group) == 1 or fits(root, member, value):
                    yield from _listed(root, member, value, inside | {id(schema)})


def _objects(root: Node, schema: Any, value: Any) -> Iterator[tuple[Node, list[str]]]:
    """Each schema that lists properties, with those of them that an object in the value has, in the object's order."""
    if not isinstance(value, dict | list):
        return
    for node in _schemas_of(root, schema, value, {}):
        if isinstance(value, dict):
            properties = node.get("properties", {})
            if names := [name for name in value if name in properties]:
                yield node, names
            for name, part in value.items():
                yield from _objects(root, _property_schema(node, name), part)
        else:
            for index, part in enumerate(value):
                yield from _objects(root, _item_schema(node, index), part)


def _schemas_of(root: Node, schema: Any, value: Any, known: dict[int, Node]) -> Iterator[Node]:
    """The schema and all schemas that it applies to the same value; of alternatives, those that the value fits."""
    if not isinstance(schema, dict) or id(schema) in known:
        return
    known[id(schema)] = schema
    yield schema
    for group in same_value_groups(root, schema):
        for member in group:
            if len(group) == 1 or fits(root, member, value):
                yield from _schemas_of(root, member, value, known)


def _property_schema(node: Node, name: str) -> Any:
    if name in (properties := node.get("properties", {})):
        return properties[name]
    patterns = node.get("patternProperties", {})
    return next((patterns[p] for p in patterns if re.search(p, name)), node.get("additionalProperties"))


def _item_schema(node: Node, index: int) -> Any:
    prefix = node.get("prefixItems", [])
    return prefix[index] if index < len(prefix) else node.get("items")


def _order(names: list[str], pairs: Pairs) -> list[str]:
    """A topological order by majority. Ties keep the schema's order; properties that were never seen come last."""
    rest, ordered = list(names), []
    while rest:
        earlier = {name: sum(pairs[other, name] > pairs[name, other] for other in rest) for name in rest}
        ordered.append(min(rest, key=lambda name: (not pairs[name, name], earlier[name])))
        rest.remove(ordered[-1])
    return ordered


def _conflicts(order: list[str], pairs: Pairs) -> Iterator[str]:
    for first, second in itertools.combinations(order, 2):
        if other := pairs[second, first]:
            a, b = (json.dumps(name, ensure_ascii=False) for name in (first, second))
            yield f"{a} now comes before {b}, as in {pairs[first, second]} objects; in {other} it comes after"
