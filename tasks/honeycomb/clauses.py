"""The parts of a query as immutable pydantic types, each with its own rules.

Types are strict: a boolean or "5" is not an integer, and unknown keys are errors. `null` means absent.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, model_validator

from tasks.honeycomb.ops import (
    EXISTENCE_OPS,
    MEMBERSHIP_OPS,
    NOT_SORTABLE,
    OPS_WITHOUT_COLUMN,
    STRING_OPS,
    CalculationOp,
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
        raise ValueError("a filter's value must be a string, a finite number, a boolean or a list of those")
    scalar: Scalar = value
    return scalar


def _filter_value(value: Any) -> Scalar | tuple[Scalar, ...]:
    return tuple(map(_scalar, value)) if isinstance(value, list | tuple) else _scalar(value)


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# Functions instead of unions, because a union's errors list every branch that did not match.
Number = Annotated[int | float, PlainValidator(_number)]
FilterValue = Annotated[
    Scalar | tuple[Scalar, ...],
    PlainValidator(_filter_value),
    PlainSerializer(_as_list, return_type=Any),
]
ColumnName = Annotated[str, Field(min_length=1)]


class Clause(BaseModel):
    """Base of all parts: frozen and strict, unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _tidy(cls, data: Any) -> Any:
        """Drop nulls, and the `"join_column": ""` of old training data, which the current API refuses."""
        if not isinstance(data, dict):
            return data
        join = data.get("join_column")
        dropped = {"join_column"} if isinstance(join, str) else set()
        dropped |= {key for key in cls.model_fields if data.get(key, ...) is None}
        return {key: value for key, value in data.items() if key not in dropped}


def _check_calculation(op: str, column: str | None) -> None:
    """Check that COUNT and CONCURRENCY have no column, and that every other op has one."""
    if op in OPS_WITHOUT_COLUMN and column is not None:
        raise ValueError(f"{op} takes no column, got {column!r:.60}")
    if op not in OPS_WITHOUT_COLUMN and column is None:
        raise ValueError(f"{op} needs a column")


def _check_sortable(op: str) -> None:
    """Refuse HEATMAP, which is not a single number to sort or filter by."""
    if op == NOT_SORTABLE:
        raise ValueError(f"{op} cannot be used in orders or havings")


class Calculation(Clause):
    """A calculation, such as `COUNT` or `P99` of a column."""

    op: CalculationOp
    column: ColumnName | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_calculation(self.op, self.column)
        return self


class Filter(Clause):
    """A condition on events."""

    column: ColumnName
    op: FilterOp
    value: FilterValue | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        actual = f"got {self.value!r:.60}"
        if (self.op in EXISTENCE_OPS) != (self.value is None):
            raise ValueError(
                f"{self.op} needs a value" if self.value is None else f"{self.op} takes no value, {actual}"
            )
        if self.op in MEMBERSHIP_OPS and not isinstance(self.value, tuple):
            raise ValueError(f"{self.op} takes a list, {actual}")
        if self.op not in MEMBERSHIP_OPS and isinstance(self.value, tuple):
            raise ValueError(f"{self.op} takes one value, {actual}")
        if self.op in STRING_OPS and not isinstance(self.value, str):
            raise ValueError(f"{self.op} takes a string, {actual}")
        return self


class Order(Clause):
    """A sort order of rows: by a calculation, or by a breakdown (a column without op)."""

    op: CalculationOp | None = None
    column: ColumnName | None = None
    order: Direction = "ascending"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.op is not None:
            _check_sortable(self.op)
            _check_calculation(self.op, self.column)
        elif self.column is None:
            raise ValueError("an order needs op, column or both")
        return self


class Having(Clause):
    """A condition on groups, by the result of a calculation."""

    calculate_op: CalculationOp
    column: ColumnName | None = None
    op: ComparisonOp
    value: Number

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_sortable(self.calculate_op)
        _check_calculation(self.calculate_op, self.column)
        return self
