"""The values of generated events: values in filters, values that nearly match them, and which values satisfy a filter.

`sql` implements filters in the same way in SQL. Two simplifications apply to both queries alike: a filter's value is
converted to the kind of its column ("500" is 500 in a numeric column), and negative operators are true for events
without the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise

from tasks.honeycomb.query import Filter, Query

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
    """The type of a column's values."""

    NUMBER = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    TEXT = "VARCHAR"


def column_kind(column: str, queries: Sequence[Query]) -> Kind:
    """NUMBER if a query uses the column as numbers, else BOOLEAN if it does so, else TEXT."""
    values = [v for q in queries for f in q.filters if f.column == column for v in filter_values(f)]
    computed = any(c.column == column and c.op not in _COUNTING for q in queries for c in q.calculations)
    if computed or any(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return Kind.NUMBER
    return Kind.BOOLEAN if any(isinstance(v, bool) for v in values) else Kind.TEXT


def filter_values(clause: Filter) -> tuple[str | int | float | bool, ...]:
    """The values in a filter."""
    if clause.value is None:
        return ()
    return clause.value if isinstance(clause.value, tuple) else (clause.value,)


def read_as(kind: Kind, value: str | int | float | bool) -> Value:
    """A filter's value converted to the column's kind; None if that is not possible."""
    if kind is Kind.TEXT:
        return str(value).lower() if isinstance(value, bool) else str(value)
    if kind is Kind.BOOLEAN:
        return {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
    try:
        return float(value)
    except ValueError:
        return None


def near_values(kind: Kind, values: Iterable[str | int | float | bool]) -> list[Value]:
    """The values and their neighbours: both sides of every bound, and texts with other prefixes and suffixes."""
    converted = [v for v in (read_as(kind, value) for value in values) if v is not None]
    near: dict[Value, None] = {}
    for value in converted:
        near.update(dict.fromkeys(_neighbours(value)))
    if kind is Kind.NUMBER:
        numbers = sorted(float(v) for v in converted)
        near.update(dict.fromkeys((a + b) / 2 for a, b in pairwise(numbers)))
    return list(near)


def _neighbours(value: Value) -> Iterator[Value]:
    yield value
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        yield from (f"{value}-x", f"x-{value}", f"x-{value}-x", value[:-1], value[1:], value.swapcase())
    elif value is not None:
        # Close enough to detect a bound that is wrong by 5 %, and far enough to detect one that is doubled.
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
    """Whether an event with this value satisfies the filter."""
    op = clause.op
    if op in _NEGATIVE:
        return not _positive(value, _NEGATIVE[op], clause, kind)
    return _positive(value, op, clause, kind)


def _positive(value: Value, op: str, clause: Filter, kind: Kind) -> bool:
    if value is None or op == "exists":
        return value is not None
    operands = [v for v in (read_as(kind, w) for w in filter_values(clause)) if v is not None]
    if op in ("=", "in"):
        return value in operands
    if op in ("starts-with", "ends-with", "contains"):
        text, part = as_text(value), str(clause.value)
        return {"starts-with": text.startswith, "ends-with": text.endswith, "contains": text.__contains__}[op](part)
    return any(_compare(value, op, bound) for bound in operands)


def _compare(value: str | float | bool, op: str, bound: str | float | bool) -> bool:
    lower, equal = value < bound, value == bound  # type: ignore[operator]
    return {">": not lower and not equal, ">=": not lower, "<": lower, "<=": lower or equal}[op]


def as_text(value: str | float | bool) -> str:
    """The text of a value for string operators; the same as `sql.Column.text`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(value)
    return value
