"""Finds the place in a JSON schema that a compiler refuses, by compiling parts of the schema.

The only keyword that it knows is `$ref`, so it need not change when the compiler supports another keyword.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

Step = str | int
Path = tuple[Step, ...]


def find_fault(schema: Any, error_of: Callable[[Any], str]) -> str:
    """A JSON pointer to the value that causes the error, such as `#/properties/a/uniqueItems`.

    If several values together cause it (a minimum and a maximum), it points to the object that holds them.

    Args:
        schema: from `json.loads`.
        error_of: returns the compiler's message for a schema, or "" if it compiles.
    """
    search = _Search(error_of, error_of(schema))
    place = search.descend(schema, (), ())
    followed: set[Path] = set()
    while (target := _reference(place)) is not None and target not in followed:
        followed.add(target)
        if _at(place.schema, target) is None:
            break
        place = search.descend(place.schema, target, target)
    return pointer(place.path)


def pointer(path: Path) -> str:
    """A path as a URI fragment (RFC 6901)."""
    return "".join(["#", *("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)])


@dataclass(frozen=True)
class _Place:
    """The place where a search ended.

    Args:
        path: in the original schema.
        schema: the reduced schema, which still causes the error.
        value: the value at the path.
        num_needed: how many of the values in it are needed to cause the error.
    """

    path: Path
    schema: Any
    value: Any
    num_needed: int = 0

    @property
    def is_particular(self) -> bool:
        """Whether the value's own content causes the error; otherwise it is only the presence of the value."""
        return self.num_needed > 0 or not (self.value and isinstance(self.value, dict | list))

    @property
    def merit(self) -> tuple[bool, int]:
        """Sort key of places: the best has several conflicting values, or else is the deepest."""
        return self.num_needed > 1, len(self.path)


class _Search:
    """Removes parts of a schema that are not needed to cause the error.

    Args:
        error_of: returns the compiler's message for a schema, or "" if it compiles.
        error: the message whose cause is searched.
    """

    def __init__(self, error_of: Callable[[Any], str], error: str) -> None:
        self._error_of = error_of
        self._error = error

    def descend(self, schema: Any, path: Path, here: Path) -> _Place:
        """Find the deepest value, at or below a given one, that causes the error.

        Args:
            schema: a reduced schema that causes the error.
            path: of the given value, in the original schema.
            here: of the same value in `schema`, whose arrays may have lost items.
        """
        node: Any = _at(schema, here)
        if not isinstance(node, dict | list):
            return _Place(path, schema, node)
        steps: list[Step] = list(node) if isinstance(node, dict) else list(range(len(node)))
        needed = self._needed(schema, here, node, steps)
        whole = _Place(path, schema, node, len(needed))
        if not needed or (len(needed) > 1 and isinstance(node, list)):
            return whole
        schema = _replaced(schema, here, _part(node, needed))
        places = [
            self.descend(schema, (*path, step), (*here, step if isinstance(node, dict) else 0)) for step in needed
        ]
        if len(needed) == 1:
            return places[0]
        # Several values are needed: a property and its entry in `required`, or a definition and the reference to it.
        # Or the message reports several errors.
        inner = [place for place in places if place.is_particular and len(place.path) > len(path) + 1]
        if inner:
            return max(inner, key=lambda place: place.merit)
        wrong = [step for step in needed if self._error_of(_replaced(schema, here, _part(node, [step])))]
        return _Place((*path, wrong[0]), schema, _at(schema, (*here, wrong[0]))) if wrong else whole

    def _needed(self, schema: Any, here: Path, node: Any, steps: list[Step]) -> list[Step]:
        """The children that are needed to cause this error."""

        def is_enough(kept: list[Step]) -> bool:
            return self._error_of(_replaced(schema, here, _part(node, kept))) == self._error

        needed: list[Step] = []
        while steps and not is_enough(needed):
            # The error remains without the first `low` steps, but not without the first `high`.
            low, high = 0, len(steps)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if is_enough(needed + steps[middle:]) else (low, middle)
            needed.append(steps[low])
            steps = steps[low + 1 :]
        return needed


def _reference(place: _Place) -> Path | None:
    """The path that a `$ref` within the same schema refers to; None for any other value."""
    if not (place.path and place.path[-1] == "$ref" and isinstance(place.value, str)):
        return None
    if not place.value.startswith("#/"):
        return None
    steps = unquote(place.value).split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def _at(schema: Any, path: Path) -> Any:
    """The value at a path; None if there is none."""
    for step in path:
        if isinstance(schema, list) and str(step).isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        elif isinstance(schema, dict) and step in schema:
            schema = schema[step]
        else:
            return None
    return schema


def _part(node: Any, steps: list[Step]) -> Any:
    return {step: node[step] for step in steps} if isinstance(node, dict) else [node[step] for step in steps]


def _replaced(schema: Any, path: Path, value: Any) -> Any:
    """A copy of the schema with another value at a path."""
    if not path:
        return value
    step: Any = int(path[0]) if isinstance(schema, list) else path[0]
    inner = _replaced(schema[step], path[1:], value)
    if isinstance(schema, dict):
        return {**schema, step: inner}
    return [*schema[:step], inner, *schema[step + 1 :]]
