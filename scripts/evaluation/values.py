"""Values that events have: those that filters ask for, and others that nearly fit.

Owns: the kind of a column as its queries use it, near misses, and which value satisfies a filter.
`sql` says the same in SQL. Two simplifications, alike for both queries: a filter's value is read
as the column's kind ("500" is 500 in a column of numbers), and negative operators are true for an
event that lacks the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise

from honeycomb.query import Filter, Query

Value = str | float | bool | None
_COUNTING = ("COUNT", "CONCURRENCY", "COUNT_DISTINCT")
_NEGATIVE = {
    "!=": "=",
    "does-not-start-with": "starts-with",
    "does-not-end-with": "ends-with",
    "does-not-contain": "contains",
    "not-in": "in",
    "does-not-exist": "exists",
}


class Kind(StrEnum):
    """What a column holds."""

    NUMBER = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    TEXT = "VARCHAR"


def column_kind(column: str, queries: Sequence[Query]) -> Kind:
    """Numbers if anything treats it so, else booleans, else text."""
    values = [v for q in queries for f in q.filters if f.column == column for v in filter_values(f)]
    computed = any(c.column == column and c.op not in _COUNTING for q in queries for c in q.calculations)
    if computed or any(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return Kind.NUMBER
    return Kind.BOOLEAN if any(isinstance(v, bool) for v in values) else Kind.TEXT


def filter_values(clause: Filter) -> tuple[str | int | float | bool, ...]:
    """The values that a filter names."""
    if clause.value is None:
        return ()
    return clause.value if isinstance(clause.value, tuple) else (clause.value,)


def read_as(kind: Kind, value: str | int | float | bool) -> Value:
    """A filter's value as the column's kind; None if it cannot be one."""
    if kind is Kind.TEXT:
        return str(value).lower() if isinstance(value, bool) else str(value)
    if kind is Kind.BOOLEAN:
        return {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
    try:
        return float(value)
    except ValueError:
        return None


def near_values(kind: Kind, values: Iterable[str | int | float | bool]) -> list[Value]:
    """The values themselves and their neighbours: both sides of every bound, every kind of affix."""
    read = [v for v in (read_as(kind, value) for value in values) if v is not None]
    found: dict[Value, None] = {}
    for value in read:
        found.update(dict.fromkeys(_neighbours(value)))
    if kind is Kind.NUMBER:
        numbers = sorted(float(v) for v in read)
        found.update(dict.fromkeys((a + b) / 2 for a, b in pairwise(numbers)))
    return list(found)


def _neighbours(value: Value) -> Iterator[Value]:
    yield value
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        yield from (f"{value}-x", f"x-{value}", f"x-{value}-x", value[:-1], value[1:], value.swapcase())
    elif value is not None:
        # close enough to see a bound that is off by a twentieth, far enough to see one that is doubled
        yield from (
            value + 1,
            value - 1,
            value * 1.04,
            value * 0.96,
            value * 1.5,
            value * 0.6,
            value * 15,
            -value,
        )


def satisfies(value: Value, clause: Filter, kind: Kind) -> bool:
    """Whether an event with this value passes the filter."""
    op = clause.op
    if op in _NEGATIVE:
        return not _positive(value, _NEGATIVE[op], clause, kind)
    return _positive(value, op, clause, kind)


def _positive(value: Value, op: str, clause: Filter, kind: Kind) -> bool:
    if value is None or op == "exists":
        return value is not None
    wanted = [v for v in (read_as(kind, w) for w in filter_values(clause)) if v is not None]
    if op in ("=", "in"):
        return value in wanted
    if op in ("starts-with", "ends-with", "contains"):
        text, part = as_text(value), str(clause.value)
        return {"starts-with": text.startswith, "ends-with": text.endswith, "contains": text.__contains__}[
            op
        ](part)
    return any(_compare(value, op, bound) for bound in wanted)


def _compare(value: str | float | bool, op: str, bound: str | float | bool) -> bool:
    lower, equal = value < bound, value == bound  # type: ignore[operator]
    return {">": not lower and not equal, ">=": not lower, "<": lower, "<=": lower or equal}[op]


def as_text(value: str | float | bool) -> str:
    """How a value reads when a string operator looks at it; the same as SQL's `text`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(value)
    return value
