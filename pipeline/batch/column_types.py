"""Finds types of columns from JSON values, by DuckDB's names, which Parquet output needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TEXT: Final = "VARCHAR"
_ANY: Final = "JSON"
_INT64: Final = 1 << 63


class ColumnTypes:
    """The type of each column so far: the narrowest one that holds all values seen."""

    def __init__(self) -> None:
        self._types: dict[str, str | None] = {}

    def add(self, values: Mapping[str, Any]) -> None:
        """Take the values of one row into account."""
        for name, value in values.items():
            self._types[name] = _wider(self._types.get(name), _type(value))

    @property
    def types(self) -> dict[str, str]:
        """By column; a column that is always null is text."""
        return {name: kind or _TEXT for name, kind in self._types.items()}


def _type(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT" if -_INT64 <= value < _INT64 else _ANY
        case float():
            return "DOUBLE"
        case str():
            return _TEXT
    return _ANY


def _wider(first: str | None, second: str | None) -> str | None:
    if first is None or second is None or first == second:
        return first or second
    return "DOUBLE" if {first, second} == {"BIGINT", "DOUBLE"} else _ANY
