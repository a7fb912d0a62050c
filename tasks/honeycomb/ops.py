"""The operators and limits of Honeycomb's query language."""

from __future__ import annotations

from typing import Final, Literal, get_args

CalculationOp = Literal[
    "COUNT", "CONCURRENCY", "SUM", "AVG", "COUNT_DISTINCT", "MAX", "MIN", "HEATMAP",
    "P001", "P01", "P05", "P10", "P20", "P25", "P50", "P75", "P80", "P90", "P95", "P99", "P999",
    "RATE_AVG", "RATE_SUM", "RATE_MAX",
]  # fmt: skip
ComparisonOp = Literal["=", "!=", ">", ">=", "<", "<="]
StringOp = Literal[
    "starts-with", "does-not-start-with", "ends-with", "does-not-end-with", "contains", "does-not-contain"
]
ExistenceOp = Literal["exists", "does-not-exist"]
MembershipOp = Literal["in", "not-in"]
FilterOp = Literal[ComparisonOp, StringOp, ExistenceOp, MembershipOp]
Combination = Literal["AND", "OR"]
Direction = Literal["ascending", "descending"]
CompareOffset = Literal[1800, 3600, 7200, 28800, 86400, 604800, 2419200, 15724800]

COMBINATIONS: Final[tuple[str, ...]] = get_args(Combination)
DIRECTIONS: Final[tuple[str, ...]] = get_args(Direction)
CALCULATION_OPS: Final[tuple[str, ...]] = get_args(CalculationOp)
COMPARISON_OPS: Final[tuple[str, ...]] = get_args(ComparisonOp)
STRING_OPS: Final[tuple[str, ...]] = get_args(StringOp)
EXISTENCE_OPS: Final[tuple[str, ...]] = get_args(ExistenceOp)
MEMBERSHIP_OPS: Final[tuple[str, ...]] = get_args(MembershipOp)
COMPARE_OFFSETS: Final[tuple[int, ...]] = get_args(CompareOffset)
OPS_WITHOUT_COLUMN: Final[tuple[str, ...]] = ("COUNT", "CONCURRENCY")
OPS_WITH_COLUMN: Final[tuple[str, ...]] = tuple(op for op in CALCULATION_OPS if op not in OPS_WITHOUT_COLUMN)
NOT_SORTABLE: Final = "HEATMAP"  # a calculation that orders and havings may not use

MAX_LIST: Final = 100  # calculations, filters, breakdowns, orders, havings
MAX_LIMIT: Final = 1_000
DEFAULT_TIME_RANGE: Final = 7_200  # seconds
EMIT_STEPS: Final = 10  # least ratio of time range to granularity in output; some data sources require it
