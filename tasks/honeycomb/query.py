"""Parse text into a checked `Query`, with or without correcting it.

>>> query = parse_query("{'calculations': [], 'breakdowns': ['name'], 'time_range': 7200}", ["name"])
>>> canonical_json(query)
'{"breakdowns": ["name"], "calculations": [{"op": "COUNT"}]}'

Violations of the rules between parts of a query, which the grammar cannot express, are corrected by `repair`:

orders, havings      dropped if they match no calculation or breakdown
start_time           swapped with end_time if it is later
granularity          lowered to the time range
compare_time_offset  raised to Honeycomb's smallest offset that covers the time range, or dropped
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tasks.honeycomb.canonical import canonical, canonical_json
from tasks.honeycomb.clauses import Calculation, Filter, Having, Order
from tasks.honeycomb.errors import QueryRuleError, UnknownColumnError, shorten
from tasks.honeycomb.literals import read_object
from tasks.honeycomb.ops import COMPARE_OFFSETS
from tasks.honeycomb.query_type import Query, QueryParts, having_problem, order_problem, time_span


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


_MAX_PROBLEMS = 3  # in one message


def parse_query(text: str, columns: Sequence[str] | None) -> Query:
    """Parse a query from JSON or from a Python dict, perhaps in quotes; return it in canonical form.

    `columns` are the names that the query may use; None skips this check.

    Raises:
        QuerySyntaxError: it does not parse.
        QueryRuleError: it violates a rule of the query.
        UnknownColumnError: it names an unknown column.
    """
    try:
        query = Query.model_validate(read_object(text))
    except ValidationError as error:
        raise QueryRuleError(_describe(error)) from error
    if columns is not None:
        check_columns(query, columns)
    return canonical(query)


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """A checked query, and the corrections that were made to the model's text."""

    query: Query
    text: str  # canonical JSON
    repairs: tuple[str, ...]


def read_answer(text: str, columns: Sequence[str]) -> CheckedQuery:
    """Parse a model's text; this cannot fail for text that the grammar accepts.

    Unlike `parse_query`, it corrects what a grammar cannot express, as listed in `tasks.honeycomb.query`.

    Raises:
        QueryError: see `parse_query`.
    """
    try:
        parts = QueryParts.model_validate(read_object(text))
        check_columns(parts, columns)
        query, repairs = repair(parts)
    except ValidationError as error:
        raise QueryRuleError(_describe(error)) from error
    return CheckedQuery(canonical(query), canonical_json(query), repairs)


def check_columns(query: QueryParts, columns: Sequence[str]) -> None:
    """Check that every column name is exactly one of the given ones.

    Raises:
        UnknownColumnError: for the first that is not; the message has the nearest names.
    """
    known = set(columns)
    for place, column in _columns_used(query):
        if column not in known:
            raise UnknownColumnError(column, place, columns)


def _columns_used(query: QueryParts) -> Iterator[tuple[str, str]]:
    for i, name in enumerate(query.breakdowns):
        yield f"breakdowns[{i}]", name
    clauses: dict[str, Sequence[Calculation | Filter | Order | Having]] = {
        "calculations": query.calculations,
        "filters": query.filters,
        "orders": query.orders,
        "havings": query.havings,
    }
    for field, values in clauses.items():
        for i, clause in enumerate(values):
            if clause.column is not None:
                yield f"{field}[{i}].column", clause.column


def _describe(error: ValidationError) -> str:
    """The first few problems, each with its place and value."""
    problems = error.errors(include_url=False, include_context=False)
    texts = []
    for problem in problems[:_MAX_PROBLEMS]:
        place = ".".join(map(str, problem["loc"])) or "query"
        message = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
        value = problem["input"]
        actual = "" if isinstance(value, dict) else f", got {shorten(value)}"
        texts.append(f"{place}: {message}{actual}")
    if len(problems) > _MAX_PROBLEMS:
        texts.append(f"and {len(problems) - _MAX_PROBLEMS} more")
    return "; ".join(texts)
