"""Rewrites a JSON Schema with the keywords that llguidance knows.

What can be said exactly with them, is: `oneOf` of schemas that exclude each other is `anyOf`, a negation is written
with the types, keys and bounds that remain, conditions and dependencies are alternatives. What cannot, is left out, so
that the result allows everything that the schema allows, and perhaps more. Those places are listed: answers must be
checked there (`answer_checks`).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from serving.errors import GrammarError
from serving.grammar.schema_tree import Node, parts, resolve, walk
from serving.grammar.text_checks import FORMATS, is_built_in, is_known_pattern, without_lookahead

ANNOTATIONS: Final = frozenset((
    *("$schema", "$id", "id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly", "$anchor"),
))  # fmt: skip
_TYPES: Final = ("null", "boolean", "integer", "fraction", "string", "array", "object")
_CONDITIONAL: Final = frozenset((
    *("anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "contains", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems"),
))  # fmt: skip
_SPECIAL: Final = frozenset((
    *("oneOf", "not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas", "propertyNames"),
    *("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems"),
))  # fmt: skip
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "required", "enum")
_OBJECTS: Final = (
    *("properties", "patternProperties", "$defs", "definitions"),
    *("dependencies", "dependentRequired", "dependentSchemas"),
)
_MAX_DEPTH: Final = 4  # of references and negations that are looked into
_MAX_ALTERNATIVES: Final = 4  # pairs of alternatives for one value: their product is the size of a grammar
_MAX_PERMUTED: Final = 4  # values of an array without duplicates, whose orders are listed
_OF_TEXTS: Final = ("pattern", "minLength", "maxLength")
_MAX_LENGTH: Final = 50  # of texts that also match a pattern
_MAX_STEPS: Final = 3000  # of comparing alternatives and of negating
_MAX_KEYS: Final = 12  # of which at least one is required


@dataclass
class Relaxed:
    """A rewritten schema.

    Args:
        schema: allows at least what the given schema allows.
        unsure: Python ids of schemas inside the given one, with those of their keywords that `schema` does not keep.
    """

    schema: Any
    unsure: dict[int, set[str]] = field(default_factory=dict)


def relax(schema: Node, *, is_rough: bool = False) -> Relaxed:
    """A schema that llguidance is likelier to compile.

    Args:
        schema: an object; it must live as long as `unsure` is used.
        is_rough: leave out more: alternatives that multiply, and limits that only some objects may have.

    Raises:
        GrammarError: a keyword has no value of its kind; the message has the place.
    """
    for path, node in walk(schema):
        for names, kind, wanted in ((_LISTS, list, "a list"), (_OBJECTS, dict, "an object")):
            if wrong := [name for name in names if name in node and not isinstance(node[name], kind)]:
                raise GrammarError(f"the JSON schema does not compile at {path}/{wrong[0]}: it is not {wanted}")
    relaxer = _Relaxer(schema, is_rough)
    found = Relaxed(relaxer.relax(schema), relaxer.unsure)
    _mark_conditions(schema, found.unsure)
    return found


def _mark_conditions(root: Node, unsure: dict[int, set[str]]) -> None:
    """Mark the keywords with alternatives in which, or in what they refer to, something is marked."""
    nodes: dict[int, Node] = {}  # without those that were made, which are marked where they were made
    users: dict[int, list[int]] = {}  # of a schema: those that it is a part of, or that refer to it
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in nodes:
            continue
        nodes[id(node)] = node
        inner = [part for _, part in parts(node)]
        if (target := resolve(root, node.get("$ref"))) is not None:
            inner.append(target)
        for part in inner:
            users.setdefault(id(part), []).append(id(node))
        waiting += inner
    for one in unsure.keys() - nodes.keys():
        del unsure[one]
    reached, queue = set(unsure), list(unsure)
    while queue:
        for user in users.get(queue.pop(), ()):
            if user not in reached:
                reached.add(user)
                queue.append(user)
    for node in nodes.values():
        names = {place.partition("/")[0] for place, part in parts(node) if id(part) in reached} & _CONDITIONAL
        if names:
            unsure.setdefault(id(node), set()).update("if" if name in ("then", "else") else name for name in names)
    for one in reached - unsure.keys():
        unsure[one] = set()  # something further inside is marked


class _Relaxer:
    def __init__(self, root: Node, is_rough: bool) -> None:
        self.unsure: dict[int, set[str]] = {}
        self._root = root
        self._is_rough = is_rough
        self._made: list[Any] = []  # schemas that were marked: their ids must not be given to others
        self._steps = 0
        self._old_arrays = re.search(r"draft-0|2019", str(root.get("$schema", ""))) is not None

    def relax(self, node: Any) -> Any:
        """The rewritten schema; False if it allows nothing."""
        if not isinstance(node, dict):
            return node
        new: Node = {}
        for name, value in node.items():
            if name in _SPECIAL:
                continue
            match name, value:
                case "properties" | "patternProperties" | "$defs" | "definitions", dict():
                    new[name] = {key: self.relax(part) for key, part in value.items()}
                case "allOf" | "prefixItems" | "items", list():
                    new[name] = [self.relax(part) for part in value]
                case "anyOf", list():
                    new[name] = [part for part in map(self.relax, value) if part is not False]
                case "items" | "additionalItems" | "additionalProperties", _:
                    new[name] = self.relax(value)
                case _:
                    new[name] = value
        extra: list[Any] = []
        rules: tuple[Callable[[Node, Node, list[Any]], None], ...] = (
            *(self._format, self._pattern, self._one_of, self._not, self._condition, self._dependencies),
            *(self._property_names, self._unique, self._contains, self._unevaluated, self._counts),
        )
        for rule in rules:
            rule(node, new, extra)
        if self._is_rough and any(isinstance(part, dict) for part in extra):
            extra = []
            self._mark(node, *_SPECIAL & node.keys(), *{"minProperties"} & node.keys())
        if False in extra or new.get("anyOf") == [] or False in new.get("allOf", ()):
            return False
        extra = [part for part in extra if part is not True and part]
        if extra:
            new["allOf"] = [*new.get("allOf", ()), *extra]
        return new

    def _is_spent(self) -> bool:
        """Whether no more is looked into: alternatives that refer to alternatives would multiply."""
        self._steps += 1
        return self._steps > _MAX_STEPS

    def _mark(self, node: Node, *keywords: str) -> None:
        if keywords:
            self._made.append(node)
            self.unsure.setdefault(id(node), set()).update(keywords)

    def _format(self, node: Node, new: Node, extra: list[Any]) -> None:
        name = node.get("format")
        if "format" in node and not (isinstance(name, str) and is_built_in(name)):
            del new["format"]  # an annotation, unless
            if isinstance(name, str) and name in FORMATS:
                extra.append({"pattern": FORMATS[name]})

    def _pattern(self, node: Node, new: Node, extra: list[Any]) -> None:
        if isinstance(pattern := node.get("pattern"), str) and not is_known_pattern(pattern):
            self._mark(node, "pattern")
            if (rest := without_lookahead(pattern)) is not None and is_known_pattern(rest[1]):
                new["pattern"] = rest[1]
            else:
                del new["pattern"]
        if self._is_rough:  # llguidance gives up on some combinations
            has_text = any(map(_has_text, (new, *new.get("allOf", ()))))
            if has_text and max(_limit(node, "minLength", 0), _limit(node, "maxLength", 0)) > _MAX_LENGTH:
                self._mark(node, *(name for name in ("minLength", "maxLength") if new.pop(name, None) is not None))
            together = node["allOf"] if isinstance(node.get("allOf"), list) else []
            pairs = zip(together, new.get("allOf", ()), strict=True)
            for given, made in [(given, made) for given, made in pairs if _has_text(made)][1:]:
                self._mark(given, *(name for name in _OF_TEXTS if made.pop(name, None) is not None))
        named = node.get("patternProperties")
        if not isinstance(named, dict):
            return
        kept = {key: part for key, part in new["patternProperties"].items() if is_known_pattern(key)}
        if self._is_rough:
            kept = {}
        if len(kept) < len(named):
            new.pop("patternProperties")
            new["additionalProperties"] = True
            self._mark(node, "patternProperties", *(["additionalProperties"] if "additionalProperties" in node else []))
            self._mark(node, *(["properties"] if "properties" in node else []))

    def _one_of(self, node: Node, new: Node, extra: list[Any]) -> None:
        branches = node.get("oneOf")
        if not isinstance(branches, list):
            return
        relaxed = [part for part in map(self.relax, branches) if part is not False]
        if "anyOf" in new or not relaxed:
            extra.append({"anyOf": relaxed} if relaxed else False)
        else:
            new["anyOf"] = relaxed
        context = {name: value for name, value in node.items() if name != "oneOf"}
        pairs = itertools.combinations(branches, 2)
        if not all(self._excludes(one, other, context) for one, other in pairs):
            self._mark(node, "oneOf")

    def _not(self, node: Node, new: Node, extra: list[Any]) -> None:
        if "not" not in node:
            return
        refused, listed = node["not"], new.get("enum")
        values = _listed(refused)
        if isinstance(listed, list) and values is not None and not refused.keys() - ANNOTATIONS - {"enum", "const"}:
            kept = [value for value in listed if _key(value) not in {_key(one) for one in values}]
            new["enum"] = kept
            extra.append(bool(kept))
            return
        remaining, is_exact = self._negation(refused)
        extra.append(self._relaxed_part(node, "not", remaining))
        if not is_exact:
            self._mark(node, "not")

    def _relaxed_part(self, node: Node, keyword: str, part: Any) -> Any:
        """A part that was made for a keyword; the keyword is marked if the part is not kept as it is."""
        before = sum(map(len, self.unsure.values()))
        found = self.relax(part)
        if sum(map(len, self.unsure.values())) > before:
            self._mark(node, keyword)
        return found

    def _condition(self, node: Node, new: Node, extra: list[Any]) -> None:
        if "if" not in node or not node.keys() & {"then", "else"}:
            return
        negation, is_exact = self._negation(node["if"])
        met = {"allOf": [node["if"], node.get("then", True)]}
        unmet = {"allOf": [negation, node.get("else", True)]}
        ways = [self._relaxed_part(node, "if", _flat(way)) for way in (met, unmet)]
        extra.append(_any_of([way for way in ways if way is not False]))
        if not is_exact:
            self._mark(node, "if")

    def _dependencies(self, node: Node, new: Node, extra: list[Any]) -> None:
        made = []
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            value = node.get(keyword)
            for key, needed in value.items() if isinstance(value, dict) else ():
                if isinstance(needed, str):
                    needed = [needed]
                then: Any = {"required": needed} if isinstance(needed, list) else needed
                if then == {"required": []} or then is True:
                    continue
                if key in _required(node):
                    made.append((keyword, then))
                else:
                    made.append((keyword, {"anyOf": [{"properties": {key: False}}, then]}))
        if sum("anyOf" in then for _, then in made if isinstance(then, dict)) > _MAX_ALTERNATIVES or (
            self._is_rough and len(made) > 1
        ):
            self._mark(node, *(keyword for keyword, _ in made))
            return
        extra += [self._relaxed_part(node, keyword, then) for keyword, then in made]

    def _property_names(self, node: Node, new: Node, extra: list[Any]) -> None:
        names = node.get("propertyNames", True)
        if names is True or names == {}:
            return
        is_closed = node.get("additionalProperties") is False and not node.get("patternProperties")
        if is_closed or not isinstance(names, dict) or self._is_rough:
            self._mark(node, "propertyNames")
            return
        rest = names.keys() - ANNOTATIONS - {"type"}
        pattern = None
        if rest == {"pattern"} and isinstance(names["pattern"], str) and is_known_pattern(names["pattern"]):
            pattern = names["pattern"]
        elif rest in ({"enum"}, {"const"}):
            pattern = f"^({'|'.join(_quoted(name) for name in _listed(names) or () if isinstance(name, str))})$"
        if pattern is None or node.get("properties") or node.get("patternProperties"):
            self._mark(node, "propertyNames")
            return
        new["patternProperties"] = {pattern: new.get("additionalProperties", True)}
        new["additionalProperties"] = False

    def _unique(self, node: Node, new: Node, extra: list[Any]) -> None:
        if node.get("uniqueItems") is not True or _limit(node, "maxItems", 2) <= 1:
            return
        items = node.get("items")
        target = items if not isinstance(items, dict) or "$ref" not in items else resolve(self._root, items["$ref"])
        values = None if node.get("prefixItems") else _listed(target)
        if values is None:
            self._mark(node, "uniqueItems")
            return
        values = list({_key(value): value for value in values}.values())
        most = min(len(values), _limit(node, "maxItems", len(values)))
        is_plain = isinstance(target, dict) and not target.keys() - ANNOTATIONS - {"enum", "const", "type"}
        if len(values) > _MAX_PERMUTED or not is_plain or self._is_rough:
            new["maxItems"] = most
            self._mark(node, "uniqueItems")
            return
        orders = [
            {"items": [{"const": value} for value in order], "additionalItems": False}
            if self._old_arrays
            else {"prefixItems": [{"const": value} for value in order], "items": False}
            for order in itertools.permutations(values, most)
        ]
        least = {"minItems": node["minItems"]} if "minItems" in node else {}
        for name in ("items", "minItems", "maxItems"):
            new.pop(name, None)
        ways = [{"type": "array", **least, **order} for order in orders]
        others = [] if _kinds(node) == ["array"] else [{"type": _json_types([k for k in _TYPES if k != "array"])}]
        extra.append({"anyOf": [*ways, *others]})

    def _contains(self, node: Node, new: Node, extra: list[Any]) -> None:
        if "contains" not in node:
            return
        least = node.get("minContains", 1)
        if least == 0 and "maxContains" not in node:
            return
        if isinstance(least, int) and least > _limit(node, "minItems", 0):
            new["minItems"] = least
        self._mark(node, "contains")

    def _unevaluated(self, node: Node, new: Node, extra: list[Any]) -> None:
        for keyword, plain in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if node.get(keyword, True) is True:
                continue
            is_alone = not node.keys() & {"allOf", "anyOf", "oneOf", "$ref", "not", "if", "dependentSchemas", plain}
            if is_alone and not node.keys() & {"contains", "$dynamicRef", "$recursiveRef"}:
                new[plain] = self.relax(node[keyword])
            else:
                self._mark(node, keyword)

    def _counts(self, node: Node, new: Node, extra: list[Any]) -> None:
        """Limits of an object's size, which llguidance knows where there is no choice among the listed properties."""
        limits = [name for name in ("minProperties", "maxProperties") if name in node]
        if not limits:
            return
        keys = list(_properties(node))
        required = _required(node)
        is_closed = node.get("additionalProperties") is False and not node.get("patternProperties")
        is_alone = not (extra or node.keys() & {"allOf", "anyOf", "oneOf", "$ref", "not", "if"})
        if is_alone and required >= set(keys) and not self._is_rough:
            return
        for name in limits:
            new.pop(name)
            count = node[name]
            if name == "minProperties" and isinstance(count, int) and count <= len(required):
                continue
            if name == "maxProperties" and is_closed and isinstance(count, int) and count >= len(keys):
                continue
            if name == "minProperties" and count == 1 and is_closed and 0 < len(keys) <= _MAX_KEYS:
                others = [kind for kind in _json_types(_TYPES) if kind != "object"]
                ways: list[Node] = [{"required": [key]} for key, part in _properties(node).items() if part is not False]
                extra.append({"anyOf": ways if _kinds(node) == ["object"] else [*ways, {"type": others}]})
            else:
                self._mark(node, name)

    def _negation(self, schema: Any, depth: int = 0) -> tuple[Any, bool]:
        """A schema of all values that this one refuses, and perhaps more; and whether there are no more."""
        if schema is True or schema is False:
            return not schema, True
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._is_spent():
            return True, False
        found: list[Any] = []
        is_exact = True
        for keyword in schema:
            if keyword in ANNOTATIONS:
                continue
            parts, exact = self._negated_keyword(schema, keyword, depth)
            found += parts
            is_exact &= exact
        return _any_of([part for part in found if part is not False]), is_exact

    def _negated_keyword(self, schema: Node, keyword: str, depth: int) -> tuple[list[Any], bool]:
        value = schema[keyword]
        match keyword, value:
            case "type", str() | list():
                remaining = [kind for kind in _TYPES if kind not in _kinds({"type": value})]
                exact = "fraction" not in remaining or "integer" in remaining
                return [{"type": _json_types(remaining)}] if remaining else [], exact
            case "required", list():
                return [{"type": "object", "properties": {key: False}} for key in _required({"required": value})], True
            case "properties", dict():
                inner = [(key, *self._negation(part, depth + 1)) for key, part in value.items()]
                made = [
                    {"type": "object", "properties": {key: part}, "required": [key]}
                    for key, part, _ in inner
                    if part is not False
                ]
                return made, all(exact for *_, exact in inner)
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", int() | float():
                if schema.get("exclusiveMinimum") is True or schema.get("exclusiveMaximum") is True:
                    return [True], False
                return [{"type": "number", _OPPOSITE[keyword]: value}], True
            case "minLength" | "minItems" | "minProperties", int():
                kind = _COUNTED[keyword[3:]]
                return [{"type": kind, f"max{keyword[3:]}": value - 1}] if value > 0 else [], True
            case "maxLength" | "maxItems" | "maxProperties", int():
                return [{"type": _COUNTED[keyword[3:]], f"min{keyword[3:]}": value + 1}], True
            case "not", _:
                return [value], True
            case "enum", [bool() | None, *_] if all(one is None or isinstance(one, bool) for one in value):
                return [_other_constants(value)], True
            case "const", bool() | None:
                return [_other_constants([value])], True
            case "anyOf", list():
                inner_parts = [self._negation(part, depth + 1) for part in value]
                return [_flat({"allOf": [part for part, _ in inner_parts]})], all(exact for _, exact in inner_parts)
            case "allOf", list():
                inner_parts = [self._negation(part, depth + 1) for part in value]
                return [part for part, _ in inner_parts], all(exact for _, exact in inner_parts)
            case "$ref", str() if (target := resolve(self._root, value)) is not None and len(schema) == 1:
                part, exact = self._negation(target, depth + 1)
                return [part], exact
        return [True], False

    def _excludes(self, one: Any, other: Any, context: Node, depth: int = 0) -> bool:
        """Whether no value is of both schemas, as far as it is clear. Both also have the keywords of `context`."""
        if depth > _MAX_DEPTH or self._is_spent():
            return False
        sides = [list(self._conjuncts(side)) for side in (one, other)]
        if any(part is False for side in sides for part in side):
            return True
        first, second = ([part for part in side if isinstance(part, dict)] for side in sides)
        for mine, theirs in ((first, second), (second, first)):
            for part in mine:  # a schema with alternatives excludes another if each of them does
                ways = part.get("anyOf") or part.get("oneOf")
                if isinstance(ways, list) and all(
                    self._excludes({"allOf": [way, *_without_ways(mine)]}, {"allOf": theirs}, context, depth + 1)
                    for way in ways
                ):
                    return True
        values = [_values(side) for side in (first, second)]
        if values[0] is not None and values[1] is not None:
            return values[0].isdisjoint(values[1])
        common = set(_kinds(context))
        for part in (*first, *second):
            common &= set(_kinds(part))
        if not common:
            return True
        return common == {"object"} and self._objects_exclude(first, second, context, depth)

    def _objects_exclude(self, first: list[Node], second: list[Node], context: Node, depth: int) -> bool:
        shared = _required(context)
        for mine, theirs in ((first, second), (second, first)):
            needed = set[str]().union(*map(_required, mine))
            for part in theirs:
                listed = _properties(part)
                if any(listed.get(key) is False or listed.get(key) == {"not": {}} for key in needed):
                    return True
                refused = part.get("not")
                if isinstance(refused, dict) and not refused.keys() - ANNOTATIONS - {"required"}:
                    absent = _required(refused)
                    if absent and absent <= needed:
                        return True
                is_closed = part.get("additionalProperties") is False and not part.get("patternProperties")
                if is_closed and needed - listed.keys():
                    return True
        keys = set[str]().union(*map(_required, first), shared) & set[str]().union(*map(_required, second), shared)
        for key in keys:
            sides = [
                {"allOf": [part["properties"][key] for part in side if key in _properties(part)]}
                for side in (first, second)
            ]
            if all(side["allOf"] for side in sides) and self._excludes(sides[0], sides[1], {}, depth + 1):
                return True
        return False

    def _conjuncts(self, schema: Any, depth: int = 0) -> Iterator[Any]:
        """The schema without its references and `allOf`, and what these mean."""
        if not isinstance(schema, dict):
            yield schema
            return
        yield schema
        if depth > _MAX_DEPTH or self._is_spent():
            return
        if (target := resolve(self._root, schema.get("$ref"))) is not None:
            yield from self._conjuncts(target, depth + 1)
        for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            yield from self._conjuncts(part, depth + 1)


_OPPOSITE: Final = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_COUNTED: Final = {"Length": "string", "Items": "array", "Properties": "object"}


def _any_of(ways: list[Any]) -> Any:
    if not ways or True in ways:
        return bool(ways)
    return ways[0] if len(ways) == 1 else {"anyOf": ways}


def _flat(schema: Node) -> Any:
    """An `allOf` without those of its schemas that allow everything; False if one allows nothing."""
    rest = [part for part in schema["allOf"] if part is not True and part != {}]
    if False in rest:
        return False
    return True if not rest else rest[0] if len(rest) == 1 else {"allOf": rest}


def _has_text(schema: Any) -> bool:
    return isinstance(schema, dict) and "pattern" in schema


def _without_ways(schemas: list[Node]) -> list[Node]:
    return [{name: value for name, value in part.items() if name not in ("anyOf", "oneOf")} for part in schemas]


def _other_constants(values: list[Any]) -> Node:
    refused = {_key(value) for value in values}
    kept = [value for value in (None, True, False) if _key(value) not in refused]
    rest: Node = {"type": ["number", "string", "array", "object"]}
    return {"anyOf": [{"enum": kept}, rest]} if kept else rest


def _kinds(node: Node) -> list[str]:
    """The types that a schema allows, of `_TYPES`."""
    values = _values([node])
    if values is not None:
        return sorted({_type_of(json.loads(value)) for value in values})
    given = node.get("type", list(_TYPES))
    found = {kind for kind in (given if isinstance(given, list) else [given]) if isinstance(kind, str)}
    if "number" in found:
        found |= {"integer", "fraction"}
    return [kind for kind in _TYPES if kind in found]


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def _json_types(kinds: Any) -> list[str]:
    """The names of types in JSON Schema; integers and fractions together are numbers."""
    named = [kind for kind in kinds if kind not in ("integer", "fraction")]
    if "fraction" in kinds:
        return [*named, "number"]
    return [*named, "integer"] if "integer" in kinds else named


def _values(schemas: list[Node]) -> set[str] | None:
    """The values that one of these schemas lists, as JSON; None if none does."""
    found: set[str] | None = None
    for schema in schemas:
        if (listed := _listed(schema)) is not None:
            keys = {_key(value) for value in listed}
            found = keys if found is None else found & keys
    return found


def _listed(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _key(value: Any) -> str:
    """Equal for equal JSON values: 1 and 1.0 are the same."""
    return (
        json.dumps(value, sort_keys=True)
        if not isinstance(value, float)
        else repr(int(value) if value.is_integer() else value)
    )


def _required(node: Node) -> set[str]:
    value = node.get("required")
    return {key for key in value if isinstance(key, str)} if isinstance(value, list) else set()


def _properties(node: Node) -> Node:
    value = node.get("properties")
    return value if isinstance(value, dict) else {}


def _limit(node: Node, keyword: str, default: int) -> int:
    value = node.get(keyword)
    return value if type(value) is int else default


@lru_cache(1024)
def _quoted(name: str) -> str:
    return re.sub(r"([\\.+*?()|\[\]{}^$/])", r"\\\1", name)
