"""Whether two queries find the same.

Owns: comparing what both find on generated events: the table of results (as a list where the query
orders it), the earlier period it compares with, and the graph. Names do not matter, values do; the
order in which calculations or breakdowns are written does not matter either.

    same_results(reference, answer)  ->  True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from honeycomb.query import Query
from scripts.evaluation.events import EventTable

SEEDS = (0, 1)  # two tables: what agrees by accident on one does not on both
DIGITS = 7  # floats agree to so many

Rows = list[tuple[Any, ...]]


def same_results(reference: Query, answer: Query) -> bool:
    """True if both find the same on every table of events, and something on one of them."""
    if len(reference.breakdowns) != len(answer.breakdowns):
        return False
    if len(reference.calculations) != len(answer.calculations):
        return False
    found = False
    for seed in SEEDS:
        with EventTable(reference, answer, seed) as table:
            if not _same_on(table, reference, answer):
                return False
            found = found or bool(table.summary(reference))
    return found


def _same_on(table: EventTable, reference: Query, answer: Query) -> bool:
    mine, others = _places(reference, answer)
    return (
        _pick(table.summary(reference), mine) == _pick(table.summary(answer), others)
        and _pick(table.compared(reference), mine) == _pick(table.compared(answer), others)
        and _pick(table.series(reference), _graph(mine, reference))
        == _pick(table.series(answer), _graph(others, answer))
    )


def _places(reference: Query, answer: Query) -> tuple[list[int], list[int]]:
    """In which order to read the columns of either result: by name where the names are the same."""
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


def _graph(places: list[int], query: Query) -> list[int]:
    """The graph has the time in front and no groups."""
    groups = len(query.breakdowns)
    return [0, *(1 + i - groups for i in places if i >= groups)]


def _pick(rows: Rows, places: list[int]) -> Rows:
    return [tuple(_rounded(row[i]) for i in places) for row in rows]


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
