"""The rules that tie one part of a query to another.

Owns: op against column, orders and havings against what is calculated, and time. Knows nothing
of text. Each check raises ValueError, which pydantic gathers with the place it came from.

    check_query(query)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from honeycomb.ops import DEFAULT_TIME_RANGE, NOT_SORTABLE, OPS_WITHOUT_COLUMN

if TYPE_CHECKING:
    from honeycomb.types import Query


def check_calculation(op: str, column: str | None) -> None:
    """COUNT and CONCURRENCY take no column; every other op needs one."""
    if op in OPS_WITHOUT_COLUMN and column is not None:
        raise ValueError(f"{op} takes no column, got {column!r:.60}")
    if op not in OPS_WITHOUT_COLUMN and column is None:
        raise ValueError(f"{op} needs a column")


def check_sortable(op: str) -> None:
    """A heatmap is not one number, so nothing can be sorted or kept by it."""
    if op == NOT_SORTABLE:
        raise ValueError(f"{op} cannot be used in orders or havings")


def time_span(query: Query) -> int:
    """Seconds that the query looks at."""
    if query.start_time is not None and query.end_time is not None:
        return query.end_time - query.start_time
    return query.time_range or DEFAULT_TIME_RANGE


def check_query(query: Query) -> None:
    """All rules between clauses."""
    _check_references(query)
    _check_time(query)


def _check_references(query: Query) -> None:
    calculated = {(c.op, c.column) for c in query.calculations}
    for i, order in enumerate(query.orders):
        if order.op is None and order.column not in query.breakdowns:
            raise ValueError(f"orders[{i}]: {order.column!r:.60} is not a breakdown")
        if order.op is not None and (order.op, order.column) not in calculated:
            raise ValueError(f"orders[{i}]: {_call(order.op, order.column)} is not calculated")
    for i, having in enumerate(query.havings):
        if (having.calculate_op, having.column) not in calculated:
            raise ValueError(f"havings[{i}]: {_call(having.calculate_op, having.column)} is not calculated")


def _check_time(query: Query) -> None:
    start, end = query.start_time, query.end_time
    if start is not None and end is not None:
        if query.time_range is not None:
            raise ValueError("time_range, start_time and end_time cannot all be given; drop one")
        if start > end:
            raise ValueError(f"start_time {start} is after end_time {end}")
    span = time_span(query)
    if query.granularity is not None and query.granularity > span:
        raise ValueError(f"granularity {query.granularity} is over the time range of {span} s")
    offset = query.compare_time_offset_seconds
    if offset is not None and offset < span:
        raise ValueError(f"compare_time_offset_seconds {offset} is under the time range of {span} s")


def _call(op: str, column: str | None) -> str:
    return f"{op}({column or ''})"
