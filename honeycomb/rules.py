"""The rules of a query that no single field can state.

Owns: op against column, orders and havings against what is calculated, and time. Knows nothing
of text. Each check raises ValueError, which pydantic gathers with the place it came from.

    check_query(query)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from honeycomb.ops import DEFAULT_TIME_RANGE, NOT_SORTABLE, OPS_WITHOUT_COLUMN

if TYPE_CHECKING:
    from honeycomb.clauses import Having, Order
    from honeycomb.types import QueryParts


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


def time_span(query: QueryParts) -> int:
    """Seconds that the query looks at."""
    if query.start_time is not None and query.end_time is not None:
        return query.end_time - query.start_time
    return query.time_range or DEFAULT_TIME_RANGE


def order_problem(order: Order, query: QueryParts) -> str | None:
    """Why the order matches nothing in the query; None if it does."""
    if order.op is None:
        return None if order.column in query.breakdowns else f"{order.column!r:.60} is not a breakdown"
    return _not_calculated(order.op, order.column, query)


def having_problem(having: Having, query: QueryParts) -> str | None:
    """Why the having matches nothing in the query; None if it does."""
    return _not_calculated(having.calculate_op, having.column, query)


def check_query(query: QueryParts) -> None:
    """All rules between parts."""
    for i, order in enumerate(query.orders):
        if problem := order_problem(order, query):
            raise ValueError(f"orders[{i}]: {problem}")
    for i, having in enumerate(query.havings):
        if problem := having_problem(having, query):
            raise ValueError(f"havings[{i}]: {problem}")
    _check_time(query)


def _check_time(query: QueryParts) -> None:
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


def _not_calculated(op: str, column: str | None, query: QueryParts) -> str | None:
    if any((c.op, c.column) == (op, column) for c in query.calculations):
        return None
    return f"{op}({column or ''}) is not calculated"
