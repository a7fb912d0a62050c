"""A query whose parts are valid on their own; rules between parts are not checked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from tasks.honeycomb.clauses import Calculation, Clause, ColumnName, Filter, Having, Order
from tasks.honeycomb.ops import MAX_LIMIT, MAX_LIST, Combination, CompareOffset

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
