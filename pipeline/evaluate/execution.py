"""Compare the results of two queries on generated events: the table, the compared period and the graph.

Only values are compared, in order where the query has an order. Names, and the order of calculations or breakdowns, do
not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.evaluate.events import EventTable
from tasks.honeycomb.query import Query

SEEDS = (0, 1)  # two tables, so that different queries do not agree by accident
DIGITS = 7  # significant digits of floats that are compared

Rows = list[tuple[Any, ...]]


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
