"""Infers the JSON Schema of answers from all of them, with memory that does not grow with their number.

A schema that is too narrow makes right answers impossible, and one that is too wide only makes the grammar force fewer
tokens. So a text becomes an enum, and an object closed, only where the answers themselves show it: those of each half
of the inputs have the same values, which are few, repeated, and not copied from the input.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from serving.grammar.schema_tree import Node
from tasks.bounds import MAX_INTEGER

_MAX_ENUM: Final = 200  # values; classifiers of 150 intents exist
_MAX_ENUM_LENGTH: Final = 80  # characters of a value
_MIN_ENUM_ANSWERS: Final = 20
_ANSWERS_A_VALUE: Final = 5  # at least so many on average
_MAX_KEYS: Final = 200  # of an object; with more its keys are data
_MIN_DATA_KEYS: Final = 20  # of an object whose keys are data, as two thirds of them occur once
_MIN_LENGTH: Final = 40  # of maxLength, in characters
_MAX_LENGTH: Final = 20_000  # grammars take some 50,000
_MAX_ITEMS: Final = 1_000  # grammars take some 10,000
_ORDER: Final = ("object", "array", "string", "integer", "number", "boolean", "null")


@dataclass
class Shape:
    """What the values in one place of the answers have in common.

    Args:
        kinds: how many values are of each JSON type.
        properties: of the objects, in the order in which they first occur.
        others: of the objects' values, once their keys are found to be too many for names.
        items: of the arrays' items.
        most_items: of an array.
        longest: text, in characters.
        texts: how often each text occurs in each half of the examples; None once there are too many.
        copied: texts that occur in their inputs.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    properties: dict[str, Shape] = field(default_factory=dict)
    others: Shape | None = None
    items: Shape | None = None
    most_items: int = 0
    longest: int = 0
    texts: dict[str, list[int]] | None = field(default_factory=dict)
    copied: int = 0

    def add(self, value: Any, source: str, half: int) -> None:
        """Add a value.

        Args:
            value: of JSON.
            source: the input of its answer, in lower case.
            half: 0 or 1, which half of the examples it is in; those with nearly the same input are in one.
        """
        kind = _kind(value)
        self.kinds[kind] += 1
        if kind == "object":
            self._add_object(value, source, half)
        elif kind == "array":
            self.most_items = max(self.most_items, len(value))
            for item in value:
                self.items = self.items or Shape()
                self.items.add(item, source, half)
        elif kind == "string":
            self._add_text(value, source, half)

    def schema(self, *, bounded: bool = True) -> Node:
        """The JSON Schema of the values that were added.

        Args:
            bounded: whether texts and arrays get limits.
        """
        kinds = [kind for kind in _ORDER if self.kinds[kind]]
        if "number" in kinds and "integer" in kinds:
            kinds.remove("integer")
        if (values := self._enum()) is not None and set(kinds) <= {"string", "null"}:
            return {"enum": [*values, *([None] if "null" in kinds else [])]}
        found: Node = {"type": kinds[0] if len(kinds) == 1 else kinds}
        if "object" in kinds:
            found |= self._object(bounded=bounded)
        if "array" in kinds:
            if self.items is not None:
                found["items"] = self.items.schema(bounded=bounded)
            if bounded or self.items is None:
                found |= _limit("maxItems", self.most_items * 2 + 2 if self.most_items else 0, _MAX_ITEMS)
        if "string" in kinds and bounded:
            found |= _limit("maxLength", max(_MIN_LENGTH, -(-self.longest // 5) * 10), _MAX_LENGTH)
        return found

    def _add_object(self, value: dict[str, Any], source: str, half: int) -> None:
        for name, part in value.items():
            if self.others is None and name not in self.properties and len(self.properties) == _MAX_KEYS:
                self.others = self._merged()
                self.properties = {}
            place = self.others
            if place is None and (place := self.properties.get(name)) is None:
                place = self.properties[name] = Shape()
            place.add(part, source, half)

    def _add_text(self, value: str, source: str, half: int) -> None:
        self.longest = max(self.longest, len(value))
        self.copied += value.lower() in source
        if self.texts is not None:
            self.texts.setdefault(value, [0, 0])[half] += 1
            if len(self.texts) > _MAX_ENUM or len(value) > _MAX_ENUM_LENGTH or not value.isprintable():
                self.texts = None

    def _object(self, *, bounded: bool) -> Node:
        others = self.others or (self._merged() if self._keys_are_data() else None)
        if others is not None:
            return {"additionalProperties": others.schema(bounded=bounded)}
        count = self.kinds["object"]
        found: Node = {"properties": {name: part.schema(bounded=bounded) for name, part in self.properties.items()}}
        if required := [name for name, part in self.properties.items() if part.kinds.total() == count]:
            found["required"] = required
        return {**found, "additionalProperties": False}

    def _keys_are_data(self) -> bool:
        """Whether most keys occur once and all values are alike, as in {"Ann": 3, "Bob": 5}."""
        counts = [part.kinds.total() for part in self.properties.values()]
        kinds = {kind for part in self.properties.values() for kind in part.kinds}
        return len(counts) >= _MIN_DATA_KEYS and len(kinds) == 1 and 3 * counts.count(1) >= 2 * len(counts)

    def _merged(self) -> Shape:
        merged = Shape()
        for part in self.properties.values():
            merged._merge(part)
        return merged

    def _merge(self, other: Shape) -> None:
        self.kinds += other.kinds
        self.most_items, self.longest = max(self.most_items, other.most_items), max(self.longest, other.longest)
        self.copied += other.copied
        if self.texts is not None and other.texts is not None:
            for text, halves in other.texts.items():
                mine = self.texts.setdefault(text, [0, 0])
                mine[:] = [a + b for a, b in zip(mine, halves, strict=True)]
        if other.texts is None or (self.texts is not None and len(self.texts) > _MAX_ENUM):
            self.texts = None
        if other.items is not None:
            self.items = self.items or Shape()
            self.items._merge(other.items)
        if self.others is None and other.others is None and len(self.properties | other.properties) <= _MAX_KEYS:
            for name, part in other.properties.items():
                self.properties.setdefault(name, Shape())._merge(part)
        else:
            self.others = self.others or self._merged()
            self.others._merge(other.others or other._merged())
            self.properties = {}

    def _enum(self) -> list[str] | None:
        """The values of a text that has few, in alphabetical order; None for other texts."""
        count = self.kinds["string"]
        if not self.texts or count < max(_MIN_ENUM_ANSWERS, _ANSWERS_A_VALUE * len(self.texts)):
            return None
        if 2 * self.copied > count or not all(first and second for first, second in self.texts.values()):
            return None
        return sorted(self.texts)


def _limit(name: str, value: int, largest: int) -> Node:
    return {name: value} if value <= largest else {}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if abs(value) <= MAX_INTEGER else "number"
    if isinstance(value, float):
        return "number"
    return {dict: "object", list: "array", str: "string", type(None): "null"}[type(value)]
