"""Translates a query to DuckDB SQL over a table of events, and says of values which satisfy a filter.

The semantics are exact except for three ops, whose approximations still depend on op, column, filters and time:
CONCURRENCY is the largest number of events in a fortieth of the time range; RATE_x is the change of x from the first to
the second half of the range, per second; HEATMAP is a histogram over logarithmic bins. COUNT is the sum of the events'
sample rates. Two simplifications apply to all queries alike: a filter's value is converted to the kind of its column
("500" is 500 in a numeric column), and negative operators are true for events without the column.

    summary_sql(query, columns, span)  ->  'SELECT … FROM events WHERE … GROUP BY …'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tasks.honeycomb.clauses import Calculation, Filter
from tasks.honeycomb.query_type import Query

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
_BOUND = (">", ">=", "<", "<=")
_STRING = {"starts-with": "starts_with", "ends-with": "suffix", "contains": "contains"}


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
    return _positive(value, _NEGATIVE.get(op, op), clause, kind) != (op in _NEGATIVE)


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
    """The text of a value for string operators; the same as `Column.text`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(value)
    return value


@dataclass(frozen=True, slots=True)
class Column:
    """The name and type of a query's column in the table."""

    alias: str
    kind: Kind

    @property
    def text(self) -> str:
        """The SQL expression on which string operators work."""
        if self.kind is Kind.NUMBER:
            whole = f"{self.alias} = floor({self.alias}) AND abs({self.alias}) < 1e15"
            return (
                f"CASE WHEN {whole} THEN CAST(CAST({self.alias} AS BIGINT) AS VARCHAR) "
                f"ELSE CAST({self.alias} AS VARCHAR) END"
            )
        return self.alias if self.kind is Kind.TEXT else f"CAST({self.alias} AS VARCHAR)"


Columns = Mapping[str, Column]
Span = tuple[float, float]


def summary_sql(query: Query, columns: Columns, span: Span) -> str:
    """SQL of the table of results: one row for each group, with the query's order and limit."""
    groups = [columns[name].alias for name in query.breakdowns]
    calculated = [f"{aggregate(c, columns, span)} AS a{i}" for i, c in enumerate(query.calculations)]
    inner = f"SELECT {', '.join([*groups, *calculated])} FROM events WHERE {where(query, columns, span)}"
    if groups:
        inner += f" GROUP BY {', '.join(groups)}"
    outer = [*groups, *(f"a{i}" for i in range(len(query.calculations)))]
    text = f"SELECT {', '.join(outer)} FROM ({inner})"
    if query.havings:
        text += f" WHERE {' AND '.join(_having(query, i) for i in range(len(query.havings)))}"
    # Ties are ordered by group, in an order that does not depend on the order of breakdowns.
    keys = [_order_key(query, i, columns) for i in range(len(query.orders))]
    keys += [f"{columns[name].alias} NULLS LAST" for name in sorted(query.breakdowns)]
    if keys:
        text += f" ORDER BY {', '.join(keys)}"
    return text if query.limit is None else f"{text} LIMIT {query.limit}"


def series_sql(query: Query, columns: Columns, span: Span) -> str:
    """SQL of the graph: the calculations for each time step, over all groups."""
    start, end = span
    step = query.granularity or max(1.0, (end - start) / 120)
    bucket = f"floor((ts - {start}) / {step}) * {step}"
    calculated = [f"{aggregate(c, columns, span)} AS a{i}" for i, c in enumerate(query.calculations)]
    return (
        f"SELECT {bucket} AS bucket, {', '.join(calculated)} FROM events "
        f"WHERE {where(query, columns, span)} GROUP BY bucket ORDER BY bucket"
    )


def where(query: Query, columns: Columns, span: Span) -> str:
    """The SQL condition on events: time range and filters."""
    time = f"ts >= {span[0]} AND ts < {span[1]}"
    if not query.filters:
        return time
    conditions = [f"({condition(f, columns[f.column])})" for f in query.filters]
    return f"{time} AND ({f' {query.filter_combination} '.join(conditions)})"


def condition(clause: Filter, column: Column) -> str:
    """The SQL condition of one filter; negative operators are true for events without the column."""
    op, name = _NEGATIVE.get(clause.op, clause.op), column.alias
    negation = "NOT " if clause.op in _NEGATIVE else ""
    if op == "exists":
        return f"{name} IS {'' if negation else 'NOT '}NULL"
    if op in _STRING:
        return f"{negation}coalesce({_STRING[op]}({column.text}, {literal(str(clause.value))}), false)"
    values = [v for v in (read_as(column.kind, w) for w in filter_values(clause)) if v is not None]
    if op in _BOUND:
        return f"coalesce({name} {op} {literal(values[0])}, false)" if values else "false"
    return negation + (f"coalesce({name} IN ({', '.join(map(literal, values))}), false)" if values else "false")


def aggregate(calculation: Calculation, columns: Columns, span: Span) -> str:
    """The SQL expression of one calculation, rounded so that sums in another order are equal."""
    start, end = span
    op = calculation.op
    if op == "COUNT":
        return "coalesce(sum(weight), 0)"
    if op == "CONCURRENCY":
        part = f"CAST(floor((ts - {start}) * 40 / {end - start}) AS INTEGER)"
        return f"coalesce(list_max(map_values(histogram({part}))), 0)"
    assert calculation.column is not None
    name = columns[calculation.column].alias
    if op == "COUNT_DISTINCT":
        return f"count(DISTINCT {name})"
    if op == "HEATMAP":
        return f"CAST(histogram(floor(sign({name}) * ln(abs({name}) + 1) * 6)) AS VARCHAR)"
    if op.startswith("RATE_"):
        half = (start + end) / 2
        value = f"{op.removeprefix('RATE_')}({name})"
        early, late = f"{value} FILTER (ts < {half})", f"{value} FILTER (ts >= {half})"
        return f"round((coalesce({late}, 0) - coalesce({early}, 0)) / {(end - start) / 2}, 9)"
    if op in ("SUM", "AVG", "MAX", "MIN"):
        return f"round({op}({name}), 6)"
    return f"round(quantile_cont({name}, {_quantile(op)}), 6)"


def _quantile(op: str) -> float:
    """The quantile of a percentile op: 0.95 for P95, 0.999 for P999, 0.05 for P05."""
    return float(f"0.{op.removeprefix('P')}")


def _having(query: Query, index: int) -> str:
    having = query.havings[index]
    calculated = [(c.op, c.column) for c in query.calculations]
    at = calculated.index((having.calculate_op, having.column))
    return f"a{at} {'<>' if having.op == '!=' else having.op} {having.value}"


def _order_key(query: Query, index: int, columns: Columns) -> str:
    order = query.orders[index]
    direction = "DESC" if order.order == "descending" else "ASC"
    if order.op is None:
        assert order.column is not None
        return f"{columns[order.column].alias} {direction} NULLS LAST"
    calculated = [(c.op, c.column) for c in query.calculations]
    return f"a{calculated.index((order.op, order.column))} {direction} NULLS LAST"


def literal(value: str | float | bool | None) -> str:
    """A value as an SQL literal."""
    if isinstance(value, str):
        escaped = value.replace("'", "''")
        return f"'{escaped}'"
    return str(value).lower() if isinstance(value, bool) else repr(value)
