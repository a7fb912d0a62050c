"""The parts of a query as immutable pydantic types.

Owns: calculations, filters, orders and havings, and the rules that one of them obeys by itself.
Knows nothing of the query around them: `honeycomb.types`.

Strict: a boolean or "5" is not an integer, unknown keys are errors. `null` is as if absent.

    Filter(column="status_code", op=">=", value=500)
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, model_validator

from honeycomb import rules
from honeycomb.ops import (
    EXISTENCE_OPS,
    MEMBERSHIP_OPS,
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
        raise ValueError("a filter's value is a string, a finite number, a boolean or a list of those")
    scalar: Scalar = value
    return scalar


def _filter_value(value: Any) -> Scalar | tuple[Scalar, ...]:
    return tuple(map(_scalar, value)) if isinstance(value, list | tuple) else _scalar(value)


def _as_plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# Plain functions rather than unions: a union's errors list every branch that did not fit.
Number = Annotated[int | float, PlainValidator(_number)]
FilterValue = Annotated[
    Scalar | tuple[Scalar, ...],
    PlainValidator(_filter_value),
    PlainSerializer(_as_plain, return_type=Any),
]
ColumnName = Annotated[str, Field(min_length=1)]


class Clause(BaseModel):
    """What all parts share: frozen, strict, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _tidy(cls, data: Any) -> Any:
        """Drop nulls, and the `"join_column": ""` of old training data that today's API refuses."""
        if not isinstance(data, dict):
            return data
        join = data.get("join_column")
        dropped = {"join_column"} if isinstance(join, str) else set()
        dropped |= {key for key in cls.model_fields if data.get(key, ...) is None}
        return {key: value for key, value in data.items() if key not in dropped}


class Calculation(Clause):
    """What is computed: `COUNT`, or `P99` of a column."""

    op: CalculationOp
    column: ColumnName | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.check_calculation(self.op, self.column)
        return self


class Filter(Clause):
    """Which events are looked at."""

    column: ColumnName
    op: FilterOp
    value: FilterValue | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        found = f"got {self.value!r:.60}"
        if (self.op in EXISTENCE_OPS) != (self.value is None):
            raise ValueError(f"{self.op} needs a value" if self.value is None else f"no value here, {found}")
        if self.op in MEMBERSHIP_OPS and not isinstance(self.value, tuple):
            raise ValueError(f"{self.op} takes a list, {found}")
        if self.op not in MEMBERSHIP_OPS and isinstance(self.value, tuple):
            raise ValueError(f"{self.op} takes one value, {found}")
        if self.op in STRING_OPS and not isinstance(self.value, str):
            raise ValueError(f"{self.op} takes a string, {found}")
        return self


class Order(Clause):
    """How rows are sorted: by a calculation, or by a breakdown (a column without op)."""

    op: CalculationOp | None = None
    column: ColumnName | None = None
    order: Direction = "ascending"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.op is not None:
            rules.check_sortable(self.op)
            rules.check_calculation(self.op, self.column)
        elif self.column is None:
            raise ValueError("an order needs op, column or both")
        return self


class Having(Clause):
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
