"""Compare two queries part by part, and compute F1 for each part.

A filter counts as three items: its column, its op on that column, and its value on that column. So a wrong value does
not hide a right column.

    counts = compare_parts(reference, answer); f1(sum_counts([counts]))["calculations"]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tasks.honeycomb.ops import DEFAULT_TIME_RANGE
from tasks.honeycomb.query import Query

PARTS = (
    "calculations",
    "filter_columns",
    "filter_ops",
    "filter_values",
    "breakdowns",
    "orders",
    "havings",
    "limit",
    "time",
)
_TIME = ("start_time", "end_time", "granularity", "compare_time_offset_seconds")

Parts = dict[str, Counter[str]]
Counts = dict[str, tuple[int, int, int]]  # part: right, given, expected


def take_apart(query: Query) -> Parts:
    """The query as multisets of comparable items; explicit and implicit default values are equal."""
    filters = query.filters
    time = [(name, getattr(query, name)) for name in _TIME if getattr(query, name) is not None]
    if query.start_time is None or query.end_time is None:
        time.append(("time_range", query.time_range or DEFAULT_TIME_RANGE))
    operators: list[tuple[str, str]] = [(f.column, f.op) for f in filters]
    if query.filter_combination == "OR":
        operators.append(("OR", "OR"))
    return {
        "calculations": _items((c.op, c.column) for c in query.calculations),
        "filter_columns": _items(f.column for f in filters),
        "filter_ops": _items(operators),
        "filter_values": _items((f.column, f.value) for f in filters if f.value is not None),
        "breakdowns": _items(query.breakdowns),
        "orders": _items((o.op, o.column, o.order) for o in query.orders),
        "havings": _items((h.calculate_op, h.column, h.op, h.value) for h in query.havings),
        "limit": _items([] if query.limit is None else [query.limit]),
        "time": _items(time),
    }


def compare_parts(reference: Query, answer: Query | None) -> Counts:
    """Numbers of right, given and expected items by part; an invalid answer gives none."""
    expected = take_apart(reference)
    given = take_apart(answer) if answer is not None else {part: Counter() for part in PARTS}
    return {
        part: ((expected[part] & given[part]).total(), given[part].total(), expected[part].total()) for part in PARTS
    }


def sum_counts(counts: Iterable[Mapping[str, Iterable[int]]]) -> Counts:
    """The sum of the counts of several answers."""
    total = dict.fromkeys(PARTS, (0, 0, 0))
    for one in counts:
        for part in PARTS:
            right, given, expected = one[part]
            a, b, c = total[part]
            total[part] = (a + right, b + given, c + expected)
    return total


def f1(counts: Mapping[str, tuple[int, int, int]]) -> dict[str, float]:
    """F1 of each part, and of `all` parts together; 1 for a part without items."""
    whole = tuple(sum(c[i] for c in counts.values()) for i in range(3))
    return {part: _f1(*values) for part, values in {**counts, "all": whole}.items()}


def _f1(right: int, given: int, expected: int) -> float:
    return 2 * right / (given + expected) if given + expected else 1.0


def _items(values: Iterable[Any]) -> Counter[str]:
    return Counter(json.dumps(value, ensure_ascii=False) for value in values)
