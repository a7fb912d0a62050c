"""JSON values as fields that can be compared one by one.

A field is a leaf with the path to it: a text, number, boolean or null, or an object or list that is empty. Items of a
list have the same path (`lines[].sku`), wherever in the list they stand, and count as often as they occur. So an item
in the wrong place costs nothing here (exact match sees it), and which fields make up one item is not looked at. 1 and
1.0 are the same number. Precision is the share of an answer's fields that the reference has too, recall the share of
the reference's fields that the answer has, F1 their harmonic mean; all are taken over the fields of all answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

Field = tuple[str, str]  # path, canonical JSON of the leaf
Counts = dict[str, tuple[int, int, int]]  # path: fields that are right, given, expected


def fields(value: Any) -> Counter[Field]:
    """The fields of a value as a multiset."""
    return Counter(_fields("", value))


def canonical(value: Any) -> str:
    """JSON text that is the same for equal values: keys sorted, whole numbers without a fraction."""
    return json.dumps(_whole_numbers(value), ensure_ascii=False, sort_keys=True)


def compare_fields(reference: Any, answer: Counter[Field]) -> Counts:
    """What is right, given and expected, by path."""
    expected = fields(reference)
    right = expected & answer
    counted = [_by_path(found) for found in (right, answer, expected)]
    paths = dict.fromkeys(path for path, _ in [*expected, *answer])
    return {path: (counted[0][path], counted[1][path], counted[2][path]) for path in paths}


def _fields(path: str, value: Any) -> Iterator[Field]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _fields(f"{path}.{name}" if path else name, part)
    elif isinstance(value, list) and value:
        for part in value:
            yield from _fields(f"{path}[]", part)
    else:
        yield path, canonical(value)


def _by_path(found: Counter[Field]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for (path, _), count in found.items():
        counted[path] += count
    return counted


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
