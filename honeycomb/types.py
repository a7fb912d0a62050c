"""The query as immutable pydantic types.

Owns: fields, their types and the rules of one clause. Rules between clauses are in
`honeycomb.rules`. Knows nothing of text: `honeycomb.query` parses it.

Strict: a boolean or "5" is not an integer, unknown keys are errors. `null` is as if absent.

    Query(calculations=(Calculation(op="P99", column="duration_ms"),), breakdowns=("name",))
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, field_validator, model_validator

from honeycomb import rules
from honeycomb.ops import (
    EXISTENCE_OPS,
    MAX_LIMIT,
    MAX_LIST,
    MEMBERSHIP_OPS,
    STRING_OPS,
    CalculationOp,
    Combination,
    CompareOffset,
    ComparisonOp,
    Direction,
    FilterOp,
)

Scalar = str | bool | int | float


def _is_number(value: object) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer or (isinstance(value, float) and math.isfinite(value))


def _number(value: Any) -> int | float:
    if not _is_number(value):
        raise ValueError("the value must be a finite number")
    number: int | float = value
    return number


def _scalar(value: Any) -> Scalar:
    if not isinstance(value, str | bool) and not _is_number(value):
        raise ValueError("a filter's value is a string, a finite number, a boolean or a list of those")
    scalar: Scalar = value
    return scalar


def _filter_value(value: Any) -> Scalar | tuple[Scalar, ...]:
    return tuple(map(_scalar, value)) if isinstance(value, list | tuple) else _scalar(value)


# Plain functions rather than unions: a union's errors list every branch that did not fit.
Number = Annotated[int | float, PlainValidator(_number)]
FilterValue = Annotated[Scalar | tuple[Scalar, ...], PlainValidator(_filter_value)]
ColumnName = Annotated[str, Field(min_length=1)]
_clauses = Field(max_length=MAX_LIST, strict=False)  # lax only here: a JSON list may become a tuple


class _Clause(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if v is not None or k not in cls.model_fields}


class Calculation(_Clause):
    """What is computed: `COUNT`, or `P99` of a column."""

    op: CalculationOp
    column: ColumnName | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.check_calculation(self.op, self.column)
        return self


class Filter(_Clause):
    """Which events are looked at."""

    column: ColumnName
    op: FilterOp
    value: FilterValue | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.op in EXISTENCE_OPS and self.value is not None:
            raise ValueError(f"{self.op} takes no value, got {self.value!r:.60}")
        if self.op not in EXISTENCE_OPS and self.value is None:
            raise ValueError(f"{self.op} needs a value")
        if (self.op in MEMBERSHIP_OPS) != isinstance(self.value, tuple) and self.value is not None:
            wanted = "a list" if self.op in MEMBERSHIP_OPS else "one value, not a list"
            raise ValueError(f"{self.op} takes {wanted}, got {self.value!r:.60}")
        if self.op in STRING_OPS and not isinstance(self.value, str):
            raise ValueError(f"{self.op} takes a string, got {self.value!r:.60}")
        return self


class Order(_Clause):
    """How rows are sorted: by a calculation, or by a breakdown (a column without op)."""

    op: CalculationOp | None = None
    column: ColumnName | None = None
    order: Direction = "ascending"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.op is None and self.column is None:
            raise ValueError("an order needs op, column or both")
        if self.op is not None:
            rules.check_sortable(self.op)
            rules.check_calculation(self.op, self.column)
        return self


class Having(_Clause):
    """Which groups are kept, by a calculation's result."""

    calculate_op: CalculationOp
    column: ColumnName | None = None
    op: ComparisonOp
    value: Number

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.check_sortable(self.calculate_op)
        rules.check_calculation(self.calculate_op, self.column)
        return self


_COUNT = (Calculation(op="COUNT"),)


class Query(_Clause):
    """One Honeycomb query; the fields are in canonical order."""

    breakdowns: Annotated[tuple[ColumnName, ...], _clauses] = ()
    calculations: Annotated[tuple[Calculation, ...], _clauses] = _COUNT
    filters: Annotated[tuple[Filter, ...], _clauses] = ()
    filter_combination: Combination = "AND"
    orders: Annotated[tuple[Order, ...], _clauses] = ()
    havings: Annotated[tuple[Having, ...], _clauses] = ()
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    time_range: Annotated[int, Field(ge=1)] | None = None
    start_time: Annotated[int, Field(ge=1)] | None = None
    end_time: Annotated[int, Field(ge=1)] | None = None
    granularity: Annotated[int, Field(ge=0)] | None = None
    compare_time_offset_seconds: CompareOffset | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # Old training data holds "join_column": ""; today's API refuses the key, so it is dropped.
        rest = {k: v for k, v in data.items() if k != "join_column" or not isinstance(v, str)}
        if all(value is None for value in rest.values()):
            raise ValueError('the query is empty; the least is {"calculations": [{"op": "COUNT"}]}')
        return rest

    @field_validator("calculations")
    @classmethod
    def _count_by_default(cls, value: tuple[Calculation, ...]) -> tuple[Calculation, ...]:
        return value or _COUNT

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.check_query(self)
        return self
