"""Events on which two queries are told apart.

Owns: a seeded table whose values sit on both sides of everything that either query asks for. Half
of the events are drawn so as to pass the reference's filters, half the other query's, each with
some values off; groups outnumber limits; times fall in and around the ranges; groups' results lie
on, just under and just over every having. Knows nothing of which query is right.

    table = EventTable(reference, answer, seed=0); rows = table.summary(reference)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np

from honeycomb.query import Query
from honeycomb.rules import time_span
from scripts.evaluation import sql
from scripts.evaluation.calibration import calibrate_havings
from scripts.evaluation.sql import Column, Span
from scripts.evaluation.values import Kind, Value, column_kind, filter_values, near_values, satisfies

NOW = 1_700_000_000.0
BASE_EVENTS = 3_000
MAX_EVENTS = 24_000
GROUPS = 9  # values of a breakdown, unless a limit or a threshold asks for other numbers
PASS_ALL, PASS_ANY = 0.9, 0.35  # chance that an event passes one filter of an AND, of an OR
MISSING = 0.08  # events that lack a column


class EventTable:
    """Events for a pair of queries, in a DuckDB of their own."""

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
        """First and last second that the query looks at, `shift` seconds earlier."""
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
        """The same for the earlier period, where the query compares."""
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
        """Enough for groups past every limit, and for distinct values past every threshold."""
        wanted = [BASE_EVENTS]
        wanted += [8 * q.limit for q in self._queries if q.limit is not None]
        for query in self._queries:
            wanted += [
                int(12 * GROUPS * h.value) for h in query.havings if h.calculate_op == "COUNT_DISTINCT"
            ]
        return min(MAX_EVENTS, max(wanted))

    def _fill(self) -> None:
        base = self._random.integers(0, 2, self._size)  # which query an event is drawn for
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
        """Mostly within the range of the event's query; some before it, some where it compares."""
        times = np.empty(self._size)
        for which, query in enumerate(self._queries):
            start, end = self.span(query)
            places = np.flatnonzero(base == which)
            drawn = start + (end - start) * self._random.random(len(places))
            where = self._random.random(len(places))
            drawn[where < 0.12] -= end - start
            drawn[where > 0.97] += end - start
            offsets = [q.compare_time_offset_seconds for q in self._queries if q.compare_time_offset_seconds]
            for i, offset in enumerate(offsets):
                low = 0.12 + 0.2 * i
                drawn[(where >= low) & (where < low + 0.2)] -= offset
            times[places] = drawn
        return times

    def _draw(self, name: str, kind: Kind, base: np.ndarray) -> np.ndarray:
        pool = self._pool(name, kind)
        column = np.empty(self._size, dtype=object)
        for which, query in enumerate(self._queries):
            places = np.flatnonzero(base == which)
            chosen = self._random.integers(0, len(pool), len(places))
            filters = [f for f in query.filters if f.column == name]
            if filters:
                any_of = query.filter_combination == "OR"
                passes = any if any_of else all
                fitting = [i for i, v in enumerate(pool) if passes(satisfies(v, f, kind) for f in filters)]
                if fitting:
                    chance = PASS_ANY if any_of else PASS_ALL
                    draw = self._random.choice(fitting, len(places))
                    chosen = np.where(self._random.random(len(places)) < chance, draw, chosen)
            column[places] = pool[chosen]
        return column

    def _pool(self, name: str, kind: Kind) -> np.ndarray:
        """The values of a column: those of its filters and near them, and enough others for its use."""
        named = [v for q in self._queries for f in q.filters if f.column == name for v in filter_values(f)]
        values: list[Value] = near_values(kind, named)
        others = self._other_values(name, kind)
        # what is asked for must not drown among the others, nor the others among what is asked for
        pool = values * max(1, len(others) // (4 * len(values))) + others if values else others
        absent = max(1, round(MISSING * len(pool)))
        asked = any(
            f.column == name and f.op in ("exists", "does-not-exist")
            for q in self._queries
            for f in q.filters
        )
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
        """How many other values the column has."""
        if any(name in q.breakdowns for q in self._queries):
            limits = [q.limit for q in self._queries if q.limit is not None and name in q.breakdowns]
            return max([GROUPS, *(int(1.5 * limit) for limit in limits)])
        computed = any(c.column == name for q in self._queries for c in q.calculations)
        return 400 if computed else 4


def used_columns(query: Query) -> Sequence[str]:
    """Every column that the query names."""
    named = [
        *query.breakdowns,
        *(c.column for c in query.calculations),
        *(f.column for f in query.filters),
        *(o.column for o in query.orders),
        *(h.column for h in query.havings),
    ]
    return [column for column in named if column is not None]
