"""Compares the results of two queries on random events: the table, the compared period and the graph.

Only values are compared, in order where the query has an order. Names, and the order of calculations or breakdowns, do
not matter. Events are drawn so that two different queries give different results: values lie on both sides of every
condition of either query; half of the events are drawn to satisfy the reference's filters and half the other query's,
both with exceptions; there are more groups than limits, times lie in and around the time ranges, and the results of
groups lie on, just below and just above the thresholds of havings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np

from tasks.honeycomb.evaluation import sql
from tasks.honeycomb.evaluation.havings import calibrate_havings
from tasks.honeycomb.evaluation.sql import (
    Column,
    Kind,
    Span,
    Value,
    column_kind,
    filter_values,
    near_values,
    satisfies,
)
from tasks.honeycomb.query_type import Query, time_span

SEEDS = (0, 1)  # two tables, so that different queries do not agree by accident
DIGITS = 7  # significant digits of floats that are compared

Rows = list[tuple[Any, ...]]
NOW = 1_700_000_000.0
BASE_EVENTS = 3_000
MAX_EVENTS = 24_000
GROUPS = 9  # values of a breakdown, unless a limit or a threshold requires more
PASS_ALL, PASS_ANY = 0.9, 0.35  # probability that an event satisfies one filter of an AND or of an OR
MISSING = 0.08  # fraction of events without a column


def same_results(reference: Query, answer: Query) -> bool:
    """Whether both queries give the same results on every table of events, and any results on one of them."""
    if len(reference.breakdowns) != len(answer.breakdowns):
        return False
    if len(reference.calculations) != len(answer.calculations):
        return False
    has_results = False
    for seed in SEEDS:
        with EventTable(reference, answer, seed) as table:
            if not _same_on(table, reference, answer):
                return False
            has_results = has_results or bool(table.summary(reference))
    return has_results


def _same_on(table: EventTable, reference: Query, answer: Query) -> bool:
    mine, others = _column_orders(reference, answer)
    return (
        _pick(table.summary(reference), mine) == _pick(table.summary(answer), others)
        and _pick(table.compared(reference), mine) == _pick(table.compared(answer), others)
        and _pick(table.series(reference), _graph(mine, reference))
        == _pick(table.series(answer), _graph(others, answer))
    )


def _column_orders(reference: Query, answer: Query) -> tuple[list[int], list[int]]:
    """The order in which to compare the columns of each result: by name if both have the same names."""
    groups = _aligned(reference.breakdowns, answer.breakdowns)
    calculated = _aligned(
        [f"{c.op} {c.column}" for c in reference.calculations],
        [f"{c.op} {c.column}" for c in answer.calculations],
    )
    first = len(reference.breakdowns)
    return (
        [*groups[0], *(first + i for i in calculated[0])],
        [*groups[1], *(first + i for i in calculated[1])],
    )


def _aligned(mine: Sequence[str], others: Sequence[str]) -> tuple[list[int], list[int]]:
    if sorted(mine) == sorted(others):
        return (
            sorted(range(len(mine)), key=lambda i: mine[i]),
            sorted(range(len(others)), key=lambda i: others[i]),
        )
    return list(range(len(mine))), list(range(len(others)))


def _graph(columns: list[int], query: Query) -> list[int]:
    """The columns of a graph, which has the time first and no groups."""
    groups = len(query.breakdowns)
    return [0, *(1 + i - groups for i in columns if i >= groups)]


def _pick(rows: Rows, columns: list[int]) -> Rows:
    return [tuple(_rounded(row[i]) for i in columns) for row in rows]


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


class EventTable:
    """Events for a pair of queries, in their own DuckDB database."""

    def __init__(self, reference: Query, other: Query, seed: int) -> None:
        self._queries = (reference, other)
        self._random = np.random.default_rng(seed)
        self._now = max([q.end_time for q in self._queries if q.end_time is not None], default=NOW)
        names = sorted({c for q in self._queries for c in used_columns(q)})
        self._columns = {n: Column(f"c{i}", column_kind(n, self._queries)) for i, n in enumerate(names)}
        self._size = self._table_size()
        self._connection = duckdb.connect(config={"threads": 1})
        self._fill()
        for query in self._queries:
            calibrate_havings(self._connection, query, self._columns, self.span(query))

    def __enter__(self) -> EventTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def span(self, query: Query, shift: float = 0.0) -> Span:
        """Start and end of the query's time range, `shift` seconds earlier."""
        length = time_span(query)
        end = self._now if query.end_time is None else float(query.end_time)
        start = end - length
        if query.start_time is not None:
            start = float(query.start_time)
            end = start + length if query.end_time is None else end
        return start - shift, end - shift + 1e-6

    def summary(self, query: Query) -> list[tuple[Any, ...]]:
        """The rows of the results table."""
        return self._run(sql.summary_sql(query, self._columns, self.span(query)))

    def compared(self, query: Query) -> list[tuple[Any, ...]]:
        """The rows for the earlier period that the query compares with, if any."""
        offset = query.compare_time_offset_seconds
        if offset is None:
            return []
        return self._run(sql.summary_sql(query, self._columns, self.span(query, offset)))

    def series(self, query: Query) -> list[tuple[Any, ...]]:
        """The rows of the graph."""
        return self._run(sql.series_sql(query, self._columns, self.span(query)))

    def _run(self, text: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(text).fetchall()

    def _table_size(self) -> int:
        """Enough events for more groups than every limit, and for more distinct values than every threshold."""
        sizes = [BASE_EVENTS]
        sizes += [8 * q.limit for q in self._queries if q.limit is not None]
        for query in self._queries:
            sizes += [int(12 * GROUPS * h.value) for h in query.havings if h.calculate_op == "COUNT_DISTINCT"]
        return min(MAX_EVENTS, max(sizes))

    def _fill(self) -> None:
        base = self._random.integers(0, 2, self._size)  # the query for which an event is drawn
        arrays: dict[str, Any] = {
            "ts": self._times(base),
            "weight": np.ones(self._size, dtype=np.int64),
        }
        for name, column in self._columns.items():
            arrays[column.alias] = self._draw(name, column.kind, base)
        kinds = {"ts": "DOUBLE", "weight": "BIGINT"} | {c.alias: c.kind for c in self._columns.values()}
        typed = ", ".join(f"CAST({alias} AS {kind}) AS {alias}" for alias, kind in kinds.items())
        self._connection.register("arrays", arrays)
        self._connection.execute(f"CREATE TABLE events AS SELECT {typed} FROM arrays")
        self._connection.unregister("arrays")

    def _times(self, base: np.ndarray) -> np.ndarray:
        """Times, mostly within the range of the event's query, some before or after it, some in the compared period."""
        times = np.empty(self._size)
        for which, query in enumerate(self._queries):
            start, end = self.span(query)
            rows = np.flatnonzero(base == which)
            drawn = start + (end - start) * self._random.random(len(rows))
            roll = self._random.random(len(rows))
            drawn[roll < 0.12] -= end - start
            drawn[roll > 0.97] += end - start
            offsets = [q.compare_time_offset_seconds for q in self._queries if q.compare_time_offset_seconds]
            for i, offset in enumerate(offsets):
                low = 0.12 + 0.2 * i
                drawn[(roll >= low) & (roll < low + 0.2)] -= offset
            times[rows] = drawn
        return times

    def _draw(self, name: str, kind: Kind, base: np.ndarray) -> np.ndarray:
        pool = self._pool(name, kind)
        column = np.empty(self._size, dtype=object)
        for which, query in enumerate(self._queries):
            rows = np.flatnonzero(base == which)
            chosen = self._random.integers(0, len(pool), len(rows))
            filters = [f for f in query.filters if f.column == name]
            if filters:
                any_of = query.filter_combination == "OR"
                passes = any if any_of else all
                fitting = [i for i, v in enumerate(pool) if passes(satisfies(v, f, kind) for f in filters)]
                if fitting:
                    chance = PASS_ANY if any_of else PASS_ALL
                    draw = self._random.choice(fitting, len(rows))
                    chosen = np.where(self._random.random(len(rows)) < chance, draw, chosen)
            column[rows] = pool[chosen]
        return column

    def _pool(self, name: str, kind: Kind) -> np.ndarray:
        """The values to draw from: those in or near filters, and enough others."""
        named = [v for q in self._queries for f in q.filters if f.column == name for v in filter_values(f)]
        values: list[Value] = near_values(kind, named)
        others = self._other_values(name, kind)
        # Neither the values of filters nor the others should be rare.
        pool = values * max(1, len(others) // (4 * len(values))) + others if values else others
        absent = max(1, round(MISSING * len(pool)))
        asked = any(f.column == name and f.op in ("exists", "does-not-exist") for q in self._queries for f in q.filters)
        pool = pool + [None] * (len(pool) // 2 if asked else absent)
        array = np.empty(len(pool), dtype=object)
        array[:] = pool
        return array

    def _other_values(self, name: str, kind: Kind) -> list[Value]:
        if kind is Kind.BOOLEAN:
            return [True, False]
        count = self._distinct(name)
        if kind is Kind.NUMBER:
            grouped = any(name in q.breakdowns for q in self._queries)
            drawn = self._random.lognormal(4, 2, count)
            return [float(x) for x in (np.arange(count) * 7.0 + 3 if grouped else drawn)]
        tag = self._random.integers(0, 1 << 30)
        return [f"{name[-8:]}-{tag + 7919 * i:x}" for i in range(count)]

    def _distinct(self, name: str) -> int:
        """Number of other values of a column."""
        if any(name in q.breakdowns for q in self._queries):
            limits = [q.limit for q in self._queries if q.limit is not None and name in q.breakdowns]
            return max([GROUPS, *(int(1.5 * limit) for limit in limits)])
        computed = any(c.column == name for q in self._queries for c in q.calculations)
        return 400 if computed else 4


def used_columns(query: Query) -> Sequence[str]:
    """All columns that a query uses."""
    named = [
        *query.breakdowns,
        *(c.column for c in query.calculations),
        *(f.column for f in query.filters),
        *(o.column for o in query.orders),
        *(h.column for h in query.havings),
    ]
    return [column for column in named if column is not None]
