"""Random schemas with shuffled properties, and values in the order in which a model writes them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

NAMES = ["name", "total", "items", "properties", "a/b", "x", "é", "kind~", "id", "unit", "note", "$ref"]


@dataclass
class Kind:
    """Draws a random schema, and values of it.

    Args:
        rng: the random generator.
    """

    rng: random.Random
    definitions: dict[str, Any] = field(default_factory=dict)

    def draw(self, depth: int = 0) -> tuple[Any, Any]:
        """A schema, and a function that draws a value of it."""
        choices = [self._leaf, self._leaf, self._object, self._list, self._referred, self._union]
        return (self._object if depth == 0 else self._leaf if depth > 3 else self.rng.choice(choices))(depth)

    def _leaf(self, depth: int) -> tuple[Any, Any]:
        if self.rng.random() < 0.5:
            return {"type": "integer"}, lambda: self.rng.randint(-99, 99)
        return {"type": "string"}, lambda: self.rng.choice(["", "a, b: c", 'say "no"', "日本"])

    def _object(self, depth: int, tag: str | None = None) -> tuple[Any, Any]:
        names = self.rng.sample(NAMES, self.rng.randint(1, 4))
        parts = {name: self.draw(depth + 1) for name in names}
        if tag is not None:
            parts = {"tag": ({"const": tag}, lambda: tag), **parts}
        optional = {name for name in names if self.rng.random() < 0.4}
        schema = {"type": "object", "required": sorted(parts.keys() - optional)}
        shuffled = self.rng.sample(sorted(parts), len(parts))

        def value() -> dict[str, Any]:
            return {
                name: make() for name, (_, make) in parts.items() if name not in optional or self.rng.random() < 0.5
            }

        return schema | {"properties": {name: parts[name][0] for name in shuffled}}, value

    def _list(self, depth: int) -> tuple[Any, Any]:
        schema, make = self.draw(depth + 1)
        return {"type": "array", "items": schema}, lambda: [make() for _ in range(self.rng.randint(0, 3))]

    def _referred(self, depth: int) -> tuple[Any, Any]:
        schema, make = self.draw(depth + 1)
        name = f"d/{len(self.definitions)}"
        self.definitions[name] = schema
        return {"$ref": f"#/$defs/{name.replace('/', '~1')}"}, make

    def _union(self, depth: int) -> tuple[Any, Any]:
        members = [self._object(depth + 1, tag) for tag in ("first", "second")]
        schemas = [schema for schema, _ in members]
        return {"anyOf": [*schemas, {"type": "null"}]}, lambda: self.rng.choice([*members, (None, lambda: None)])[1]()


def draw_kind(seed: int) -> tuple[Any, Any]:
    """A whole schema, its properties shuffled, and a function that draws answers in their own order."""
    kind = Kind(random.Random(seed))
    schema, make = kind.draw()
    return schema | {"$defs": kind.definitions}, make
