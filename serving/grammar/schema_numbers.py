"""Rewrites numbers of a JSON Schema that llguidance would read as others: it computes with 64-bit floats.

What is allowed afterwards is allowed by the schema. What cannot be kept exactly is refused, at its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeGuard

from serving.errors import GrammarError

_EXACT: Final = 2**53  # up to it, a float has every integer
_LARGEST: Final = 2**63 - 1024  # the largest float that is a signed 64-bit integer
_MOST_MULTIPLES: Final = 1000  # which are listed
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA: Final = ("const", "enum", "default", "examples")


def with_exact_numbers(schema: Any, path: str = "#") -> Any:
    """A copy of the schema whose numbers llguidance keeps.

    - Bounds of integers over 2**53 become the next float that is inside.
    - `multipleOf` between two bounds becomes a list of up to 1,000 numbers, because llguidance knows no negative ones.

    Raises:
        GrammarError: no integer between two bounds is a float, or an integer of `const` or `enum` is none.
    """
    if isinstance(schema, list):
        return [with_exact_numbers(part, f"{path}/{index}") for index, part in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    found = {name: _part(name, value, f"{path}/{name}") for name, value in schema.items()}
    for place, value in _constants(schema):
        if abs(value) > _LARGEST or int(float(value)) != value:
            raise GrammarError(
                f"the JSON schema is refused at {path}/{place}: {value} is an integer over 2^53 that cannot be kept "
                "exactly; make it a string"
            )
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "integer" in kinds and set(kinds) <= {"integer", "null"}:
        _narrow(found, path, nullable="null" in kinds)
    return found


def _part(name: str, value: Any, path: str) -> Any:
    if name in _DATA:
        return value
    if name in _MAPS and isinstance(value, dict):
        return {key: with_exact_numbers(part, f"{path}/{key}") for key, part in value.items()}
    return with_exact_numbers(value, path)


def _constants(schema: dict[str, Any]) -> Iterator[tuple[str, int]]:
    listed = schema.get("enum")
    values = [("const", schema.get("const")), *(("enum", one) for one in (listed if isinstance(listed, list) else ()))]
    yield from ((place, value) for place, value in values if type(value) is int)


def _narrow(schema: dict[str, Any], path: str, *, nullable: bool) -> None:
    """Make the bounds of an integer floats, and list its multiples."""
    low = _bound(schema, "minimum", 1)
    high = _bound(schema, "maximum", -1)
    if low is not None and high is not None and low > high:
        raise GrammarError(
            f"the JSON schema is refused at {path}: none of the integers that it allows can be kept exactly; those "
            "up to 2^53 can, so make it a string"
        )
    step = schema.get("multipleOf")
    if type(step) is not int or step <= 0 or low is None or high is None or {"enum", "const"} & schema.keys():
        return
    multiples = range(-(-low // step) * step, high + 1, step)
    if 0 < len(multiples) <= _MOST_MULTIPLES:
        for name in ("type", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            schema.pop(name, None)
        schema["enum"] = [*multiples, *([None] if nullable else [])]


def _bound(schema: dict[str, Any], name: str, inward: Literal[1, -1]) -> int | None:
    """The bound, exclusive ones included, as the next integer inside that is a float; it is written to the schema.

    Args:
        schema: whose bound is replaced.
        name: minimum or maximum.
        inward: 1 for a minimum, -1 for a maximum.
    """
    exclusive = "exclusive" + name.capitalize()
    inclusive, outside = schema.get(name), schema.get(exclusive)
    bounds: list[int] = []
    if _is_finite(inclusive):
        bounds.append(math.ceil(inclusive) if inward == 1 else math.floor(inclusive))
    if _is_finite(outside):
        bounds.append(math.floor(outside) + 1 if inward == 1 else math.ceil(outside) - 1)
    if not bounds:
        return None
    found = max(bounds) if inward == 1 else min(bounds)
    if abs(found) <= _EXACT:
        return found
    kept = min(max(found, -_LARGEST), _LARGEST)
    if int(float(kept)) != kept:
        nearest = float(kept)
        kept = int(nearest if (int(nearest) - kept) * inward > 0 else math.nextafter(nearest, inward * math.inf))
    schema.pop(exclusive, None)
    schema[name] = kept
    return kept


def _is_finite(value: Any) -> TypeGuard[int | float]:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))
