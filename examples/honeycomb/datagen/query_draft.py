"""The meaning of a question while it is being generated, and its query.

By convention, groups are ordered by the first calculation that can be ordered, descending, unless the question says
otherwise.
"""

from dataclasses import dataclass, field
from typing import Any

from examples.honeycomb.datagen.sample_values import Scalar

DEFAULT_RANGE = 7200
Calculation = tuple[str, str | None]


@dataclass(frozen=True)
class Filter:
    """One condition."""

    column: str
    op: str
    value: Scalar | list[Scalar] | None = None

    def json(self) -> dict[str, Any]:
        """The filter as JSON in a query."""
        clause: dict[str, Any] = {"column": self.column, "op": self.op}
        return clause if self.value is None else clause | {"value": self.value}


@dataclass
class Draft:
    """The meaning of a question so far."""

    calculations: list[Calculation] = field(default_factory=list)
    breakdowns: list[str] = field(default_factory=list)
    filters: list[Filter] = field(default_factory=list)
    any_filter: bool = False
    order_column: str | None = None
    ascending: bool = False
    havings: list[tuple[str, str | None, str, float]] = field(default_factory=list)
    limit: int | None = None
    times: dict[str, int] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)

    @property
    def time_range(self) -> int:
        """The time range of the query in seconds."""
        return self.times.get("time_range", DEFAULT_RANGE)

    @property
    def used(self) -> set[str]:
        """Columns that the query already uses."""
        columns = {column for _, column in self.calculations if column} | set(self.breakdowns)
        return columns | {clause.column for clause in self.filters}

    def query(self) -> dict[str, Any]:
        """The query with its keys in canonical order; it may have default values."""
        query: dict[str, Any] = {"breakdowns": self.breakdowns}
        query["calculations"] = [_named(*calculation) for calculation in self.calculations or [("COUNT", None)]]
        query["filters"] = [clause.json() for clause in self.filters]
        if self.any_filter:
            query["filter_combination"] = "OR"
        query["orders"] = self._orders()
        query["havings"] = [
            {"calculate_op": op, **({"column": column} if column else {}), "op": sign, "value": value}
            for op, column, sign, value in self.havings
        ]
        query["limit"] = self.limit
        query |= self.times
        return {key: value for key, value in query.items() if value not in (None, [])}

    def _orders(self) -> list[dict[str, str]]:
        if not self.breakdowns:
            return []
        direction = "ascending" if self.ascending else "descending"
        if self.order_column:
            return [{"column": self.order_column, "order": direction}]
        orderable = [c for c in self.calculations or [("COUNT", None)] if c[0] != "HEATMAP"]
        return [{**_named(*by), "order": direction} for by in orderable[:1]]


def _named(op: str, column: str | None) -> dict[str, str]:
    return {"op": op, "column": column} if column else {"op": op}
