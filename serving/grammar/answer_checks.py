"""Checks parts of an answer with those keywords of its schema that the grammar does not keep.

A value at a place of an answer must match all schemas that lead there without a condition: through properties, items,
`allOf` and references. What depends on conditions, such as the alternatives of `oneOf`, is checked where the condition
stands. `jsonschema` evaluates the keywords, with llguidance's formats and patterns.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any, Final

from serving.errors import GrammarError
from serving.grammar.relax import relax
from serving.grammar.schema_tree import Node, parts, resolve, walk
from serving.grammar.text_checks import is_checkable, is_known_format, is_of_format, matches

_TOGETHER: Final = {
    "if": ("then", "else"),
    "contains": ("minContains", "maxContains"),
    "additionalProperties": ("properties", "patternProperties"),
}
_WHOLE: Final = frozenset(("unevaluatedProperties", "unevaluatedItems"))  # they look at all other keywords
_EARLY: Final = ("uniqueItems", "maxProperties")  # more items or properties never mend them
_MAX_SCHEMAS: Final = 5000  # inside one that is checked: evaluating one takes some 10 µs
_MAX_REFERENCES: Final = 2000  # that are followed for one value


class AnswerChecks:
    """The checks of one schema. Safe to use from several threads.

    Raises:
        GrammarError: a pattern cannot be checked; the message has its place.
    """

    def __init__(self, schema: Node, *, is_rough: bool = False) -> None:
        self.schema = schema
        self.unsure = relax(schema, is_rough=is_rough).unsure
        self._is_old = re.search(r"draft-0[3-7]", str(schema.get("$schema", ""))) is not None
        self._pointers = {id(node): path for path, node in walk(schema)}
        self._children: dict[tuple[Any, ...], Place] = {}
        if self.unsure:
            if len(self._pointers) > _MAX_SCHEMAS:
                raise GrammarError(
                    f"the JSON schema has {len(self._pointers):,} schemas inside, and keywords that a grammar cannot "
                    f"keep, such as {self._first_unsure()}; the limit is {_MAX_SCHEMAS:,} then; simplify it"
                )
            self._refuse_patterns()
        self.root = self.place([schema])

    def _first_unsure(self) -> str:
        found = ((path, self.unsure.get(id(node))) for path, node in walk(self.schema))
        return next(f"{path}/{min(keywords)}" for path, keywords in found if keywords)

    def _refuse_patterns(self) -> None:
        for path, node in walk(self.schema):
            patterns = [("pattern", node["pattern"])] if isinstance(node.get("pattern"), str) else []
            if isinstance(named := node.get("patternProperties"), dict):
                patterns += [(f"patternProperties/{pattern}", pattern) for pattern in named]
            for name, pattern in patterns:
                if not is_checkable(pattern):
                    raise GrammarError(
                        f"the JSON schema does not compile at {path}/{name}: {pattern[:80]!r} is no regular expression "
                        "that can be checked in linear time; look-around and back references cannot"
                    )

    @cached_property
    def validator(self) -> Any:
        """The library's validator of the whole schema."""
        return _validator(self.schema)

    def place(self, schemas: list[Any]) -> Place:
        """The place whose value must match all of these schemas."""
        nodes: dict[int, Node] = {}
        waiting = [schema for schema in schemas if isinstance(schema, dict)]
        seen = set[int]()
        while waiting:
            node = waiting.pop(0)
            if id(node) in seen:
                continue
            seen.add(id(node))
            if not (self._is_old and "$ref" in node):  # which makes old drafts ignore what stands beside it
                nodes[id(node)] = node
            if (target := resolve(self.schema, node.get("$ref"))) is not None:
                waiting.append(target)
            waiting += [part for name, part in parts(node) if name.startswith("allOf/")]
        kept = [node for key, node in nodes.items() if key in self.unsure]
        key = tuple(map(id, kept))
        if key not in self._children:
            self._children[key] = Place(self, kept)
        return self._children[key]

    def pointer(self, node: Node) -> str:
        """The JSON pointer of a schema in the whole one."""
        return self._pointers.get(id(node), "#")

    def first_error(self, value: Any) -> str | None:
        """The pointer of a keyword that a whole answer violates; None if it matches.

        Raises:
            GrammarError: the keyword cannot be evaluated.
        """
        try:
            return self._first_error(value, self.root)
        except RecursionError as error:
            raise GrammarError("the answer is nested too deeply to be checked with the JSON schema") from error

    def _first_error(self, value: Any, place: Place) -> str | None:
        if place.is_idle:
            return None
        inner: Iterator[tuple[Any, Place]] = iter(())
        if isinstance(value, dict):
            inner = ((part, place.property(name)) for name, part in value.items())
            for name in value:
                if (error := place.key_error(name)) is not None:
                    return error
        elif isinstance(value, list):
            inner = ((part, place.item(index)) for index, part in enumerate(value))
        for part, where in inner:
            if (error := self._first_error(part, where)) is not None:
                return error
        return place.error(value)


class Place:
    """A place of an answer.

    Args:
        checks: those of the whole schema.
        nodes: the schemas that a value here must match, as far as something in them must be checked.
    """

    def __init__(self, checks: AnswerChecks, nodes: list[Node]) -> None:
        self._checks = checks
        self._nodes = nodes
        self._properties: dict[str, Place] = {}
        self._items: dict[int, Place] = {}
        own = [(node, keyword) for node in nodes for keyword in sorted(checks.unsure[id(node)])]
        self._own = [(node, keyword, _part(node, keyword)) for node, keyword in own if keyword != "propertyNames"]
        self._early = [entry for entry in self._own if any(name in entry[2] for name in _EARLY)]
        self._names = [(node, node["propertyNames"]) for node, keyword in own if keyword == "propertyNames"]
        self.is_idle = not nodes
        self.has_checks = bool(self._own or self._names)
        self.has_early_checks = bool(self._early)

    def property(self, name: str) -> Place:
        """The place of a property's value."""
        if name not in self._properties:
            if len(self._properties) > 1000:  # of names that no schema lists
                self._properties.clear()
            self._properties[name] = self._checks.place([part for node in self._nodes for part in _of_key(node, name)])
        return self._properties[name]

    def item(self, index: int) -> Place:
        """The place of an array's item."""
        if index not in self._items:
            self._items[index] = self._checks.place([part for node in self._nodes for part in _of_index(node, index)])
        return self._items[index]

    def key_error(self, name: str) -> str | None:
        """The pointer of the `propertyNames` that a key violates; None if there is none."""
        for node, schema in self._names:
            if not self._is_valid(name, schema):
                return f"{self._checks.pointer(node)}/propertyNames"
        return None

    def error(self, value: Any) -> str | None:
        """The pointer of a keyword that a whole value violates; None if there is none."""
        for node, keyword, part in self._own:
            if not self._is_valid(value, part):
                return f"{self._checks.pointer(node)}/{keyword}"
        return None

    def early_error(self, value: Any) -> str | None:
        """The same for the first items or properties of a value, if no more of them can mend it."""
        for node, keyword, part in self._early:
            if not self._is_valid(value, {name: part[name] for name in _EARLY if name in part}):
                return f"{self._checks.pointer(node)}/{keyword}"
        return None

    def _is_valid(self, value: Any, schema: Any) -> bool:
        _count.references = 0
        try:
            return bool(self._checks.validator.evolve(schema=schema).is_valid(value))
        except GrammarError:
            raise
        except Exception as error:  # the library has many for schemas that are none
            name = type(error).__name__
            raise GrammarError(f"the JSON schema cannot be checked: {name}: {str(error)[:200]}; correct it") from error


def _part(node: Node, keyword: str) -> Node:
    if keyword in _WHOLE or keyword not in node:
        return node
    names = (keyword, *_TOGETHER.get(keyword, ()))
    return {name: node[name] for name in names if name in node}


def _of_key(node: Node, name: str) -> Iterator[Any]:
    listed, patterns = node.get("properties"), node.get("patternProperties")
    found = [listed[name]] if isinstance(listed, dict) and name in listed else []
    if isinstance(patterns, dict):
        found += [part for pattern, part in patterns.items() if is_checkable(pattern) and matches(pattern, name)]
    yield from found or [node.get("additionalProperties")]


def _of_index(node: Node, index: int) -> Iterator[Any]:
    for name, rest in (("prefixItems", "items"), ("items", "additionalItems")):
        if isinstance(first := node.get(name), list):
            yield first[index] if index < len(first) else node.get(rest)
            return
    yield node.get("items")


class _Count(threading.local):
    references = 0


_count: Final = _Count()


def _validator(schema: Node) -> Any:
    """The validator of the draft that the schema names, or of 2020-12."""
    from jsonschema import Draft202012Validator  # slow to import, and few schemas need it
    from jsonschema.validators import extend, validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    follow = kind.VALIDATORS["$ref"]

    def reference(validator: Any, target: Any, instance: Any, node: Any) -> Any:
        _count.references += 1
        if _count.references > _MAX_REFERENCES:
            raise GrammarError("the JSON schema has too many alternatives for this answer to be checked; simplify it")
        yield from follow(validator, target, instance, node) or ()

    def pattern(validator: Any, expression: Any, instance: Any, node: Any) -> Any:
        if isinstance(instance, str) and not matches(expression, instance):
            yield _error(f"{instance!r} does not match {expression!r}")

    def pattern_properties(validator: Any, named: Any, instance: Any, node: Any) -> Any:
        for key, value in instance.items() if isinstance(instance, dict) else ():
            for expression, part in named.items():
                if matches(expression, key):
                    yield from validator.descend(value, part, path=key, schema_path=expression)

    def additional(validator: Any, rest: Any, instance: Any, node: Any) -> Any:
        listed, named = node.get("properties", {}), node.get("patternProperties", {})
        for key, value in instance.items() if isinstance(instance, dict) else ():
            if key in listed or any(matches(expression, key) for expression in named):
                continue
            if rest is False:
                yield _error(f"{key!r} is not allowed")
            elif isinstance(rest, dict):
                yield from validator.descend(value, rest, path=key)

    def of_format(validator: Any, name: Any, instance: Any, node: Any) -> Any:
        is_checked = isinstance(instance, str) and isinstance(name, str) and is_known_format(name)
        if is_checked and not is_of_format(name, instance):
            yield _error(f"{instance!r} is no {name!r}")

    own = {"$ref": reference, "pattern": pattern, "patternProperties": pattern_properties}
    return extend(kind, {**own, "additionalProperties": additional, "format": of_format})(schema)


def _error(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)


@lru_cache(64)
def checks_of(schema: str, is_rough: bool = False) -> AnswerChecks | None:
    """The checks of a schema, given as JSON text; None if its grammar keeps all of it.

    Raises:
        GrammarError: see `AnswerChecks`.
    """
    checks = AnswerChecks(json.loads(schema), is_rough=is_rough)
    return checks if checks.unsure else None
