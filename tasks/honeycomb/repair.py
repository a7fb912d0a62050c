"""Correct violations of the rules between parts of a query, which the grammar cannot express.

orders, havings      dropped if they match no calculation or breakdown
start_time           swapped with end_time if it is later
granularity          lowered to the time range
compare_time_offset  raised to Honeycomb's smallest offset that covers the time range, or dropped

query, repairs = repair(parts)
"""

from __future__ import annotations

from typing import Any

from tasks.honeycomb.ops import COMPARE_OFFSETS
from tasks.honeycomb.query_parts import QueryParts
from tasks.honeycomb.query_type import Query
from tasks.honeycomb.rules import having_problem, order_problem, time_span


def repair(parts: QueryParts) -> tuple[Query, tuple[str, ...]]:
    """The corrected query, and a description of each change.

    Raises:
        pydantic.ValidationError: all three times are given, which the grammar excludes.
    """
    notes: list[str] = []
    parts = _drop_unmatched(_swap_times(parts, notes), notes)
    parts = _fit_time(parts, notes)
    return Query(**{name: getattr(parts, name) for name in QueryParts.model_fields}), tuple(notes)


def _drop_unmatched(parts: QueryParts, notes: list[str]) -> QueryParts:
    orders = [order_problem(order, parts) for order in parts.orders]
    havings = [having_problem(having, parts) for having in parts.havings]
    for field, problems in (("orders", orders), ("havings", havings)):
        notes.extend(f"{field}[{i}] dropped: {problem}" for i, problem in enumerate(problems) if problem)
    return parts.model_copy(
        update={
            "orders": tuple(o for o, problem in zip(parts.orders, orders, strict=True) if not problem),
            "havings": tuple(h for h, problem in zip(parts.havings, havings, strict=True) if not problem),
        }
    )


def _swap_times(parts: QueryParts, notes: list[str]) -> QueryParts:
    start, end = parts.start_time, parts.end_time
    if start is None or end is None or start <= end:
        return parts
    notes.append(f"start_time {start} and end_time {end} swapped")
    return parts.model_copy(update={"start_time": end, "end_time": start})


def _fit_time(parts: QueryParts, notes: list[str]) -> QueryParts:
    span = time_span(parts)
    changed: dict[str, Any] = {}
    if parts.granularity is not None and parts.granularity > span:
        changed["granularity"] = span
        notes.append(f"granularity {parts.granularity} lowered to the time range of {span} s")
    offset = parts.compare_time_offset_seconds
    if offset is not None and offset < span:
        fitting = next((known for known in COMPARE_OFFSETS if known >= span), None)
        changed["compare_time_offset_seconds"] = fitting
        done = "dropped" if fitting is None else f"raised to {fitting}"
        notes.append(f"compare_time_offset_seconds {offset} {done}: the time range is {span} s")
    return parts.model_copy(update=changed)
