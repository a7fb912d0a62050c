"""The front of the query: text in, a checked `Query` out, canonical JSON back.

Owns: parsing with all rules, and exact column membership. The types are in `types`, rules between
clauses in `rules`, the canonical form in `canonical`, reading of text in `literals`.

    >>> query = parse_query("{'calculations': [], 'breakdowns': ['name'], 'time_range': 7200}", ["name"])
    >>> canonical_json(query)
    '{"breakdowns": ["name"], "calculations": [{"op": "COUNT"}]}'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from honeycomb.canonical import canonical, canonical_json, comparison_key
from honeycomb.clauses import Calculation, Filter, Having, Order
from honeycomb.errors import QueryRuleError, UnknownColumnError, shorten
from honeycomb.literals import read_object
from honeycomb.repair import repair
from honeycomb.types import Query, QueryParts

__all__ = [
    "Answer",
    "Calculation",
    "Filter",
    "Having",
    "Order",
    "Query",
    "canonical",
    "canonical_json",
    "check_columns",
    "comparison_key",
    "parse_query",
    "read_answer",
]

_MAX_PROBLEMS = 3  # in one message


def parse_query(text: str, columns: Sequence[str] | None) -> Query:
    """The canonical query that the text holds, as JSON or as a (quoted) Python dict.

    Args:
        text: what a model wrote.
        columns: the names that the query may use; None skips that check.

    Raises:
        QuerySyntaxError: it does not parse.
        QueryRuleError: it breaks a rule of the query.
        UnknownColumnError: it names a column that is not given.
    """
    try:
        query = Query.model_validate(read_object(text))
    except ValidationError as error:
        raise QueryRuleError(_describe(error)) from error
    if columns is not None:
        check_columns(query, columns)
    return canonical(query)


@dataclass(frozen=True, slots=True)
class Answer:
    """What predict returns, and what had to be mended in what the model wrote."""

    query: Query
    text: str  # canonical JSON
    repairs: tuple[str, ...]


def read_answer(text: str, columns: Sequence[str]) -> Answer:
    """The answer in what a model wrote; it cannot fail for text that the grammar accepts.

    As `parse_query`, but an order or having that matches nothing and times that do not fit are
    mended as `honeycomb.repair` lists, because no grammar sees them.

    Raises:
        QueryError: as `parse_query`.
    """
    try:
        parts = QueryParts.model_validate(read_object(text))
        check_columns(parts, columns)
        query, repairs = repair(parts)
    except ValidationError as error:
        raise QueryRuleError(_describe(error)) from error
    return Answer(canonical(query), canonical_json(query), repairs)


def check_columns(query: QueryParts, columns: Sequence[str]) -> None:
    """Every name is exactly one of those given, never a part of one.

    Raises:
        UnknownColumnError: at the first that is not; the message has the nearest names.
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
    """The first problems, each with its place and the value found there."""
    problems = error.errors(include_url=False, include_context=False)
    texts = []
    for problem in problems[:_MAX_PROBLEMS]:
        place = ".".join(map(str, problem["loc"])) or "query"
        message = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
        found = problem["input"]
        given = "" if isinstance(found, dict) else f", got {shorten(found)}"
        texts.append(f"{place}: {message}{given}")
    if len(problems) > _MAX_PROBLEMS:
        texts.append(f"and {len(problems) - _MAX_PROBLEMS} more")
    return "; ".join(texts)
