"""A query as an immutable pydantic type that satisfies all rules; `tasks.honeycomb.query` parses its text.

`QueryParts` is a query whose parts are valid on their own; `Query` satisfies the rules between them too.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from tasks.honeycomb.clauses import Calculation, Clause, ColumnName, Filter, Having, Order
from tasks.honeycomb.ops import DEFAULT_TIME_RANGE, MAX_LIMIT, MAX_LIST, Combination, CompareOffset

_COUNT = (Calculation(op="COUNT"),)
_list = Field(max_length=MAX_LIST, strict=False)  # not strict, so that a JSON list becomes a tuple
_seconds = Field(ge=1)


class QueryParts(Clause):
    """A query whose parts are valid on their own; the fields are in canonical order."""

    breakdowns: Annotated[tuple[ColumnName, ...], _list] = ()
    calculations: Annotated[tuple[Calculation, ...], _list] = _COUNT
    filters: Annotated[tuple[Filter, ...], _list] = ()
    filter_combination: Combination = "AND"
    orders: Annotated[tuple[Order, ...], _list] = ()
    havings: Annotated[tuple[Having, ...], _list] = ()
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    time_range: Annotated[int, _seconds] | None = None
    start_time: Annotated[int, _seconds] | None = None
    end_time: Annotated[int, _seconds] | None = None
    granularity: Annotated[int, Field(ge=0)] | None = None
    compare_time_offset_seconds: CompareOffset | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_empty(cls, data: Any) -> Any:
        if isinstance(data, dict) and all(data[key] is None for key in data if key != "join_column"):
            raise ValueError('the query is empty; the smallest one is {"calculations": [{"op": "COUNT"}]}')
        return data

    @field_validator("calculations")
    @classmethod
    def _count_by_default(cls, value: tuple[Calculation, ...]) -> tuple[Calculation, ...]:
        return value or _COUNT


def time_span(query: QueryParts) -> int:
    """Length of the query's time range in seconds."""
    if query.start_time is not None and query.end_time is not None:
        return query.end_time - query.start_time
    return query.time_range or DEFAULT_TIME_RANGE


def order_problem(order: Order, query: QueryParts) -> str | None:
    """Why an order matches nothing in the query; None if it does match."""
    if order.op is None:
        return None if order.column in query.breakdowns else f"{order.column!r:.60} is not a breakdown"
    return _not_calculated(order.op, order.column, query)


def having_problem(having: Having, query: QueryParts) -> str | None:
    """Why a having matches nothing in the query; None if it does match."""
    return _not_calculated(having.calculate_op, having.column, query)


def check_query(query: QueryParts) -> None:
    """Check all rules between parts.

    Raises:
        ValueError: a rule is violated; pydantic turns it into a ValidationError.
    """
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
        raise ValueError(f"granularity {query.granularity} is longer than the time range of {span} s")
    offset = query.compare_time_offset_seconds
    if offset is not None and offset < span:
        raise ValueError(f"compare_time_offset_seconds {offset} is shorter than the time range of {span} s")


def _not_calculated(op: str, column: str | None, query: QueryParts) -> str | None:
    if any((c.op, c.column) == (op, column) for c in query.calculations):
        return None
    return f"{op}({column or ''}) is not calculated"


class Query(QueryParts):
    """A query that also satisfies the rules between its parts."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_query(self)
        return self
