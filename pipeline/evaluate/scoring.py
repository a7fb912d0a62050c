"""Score an answer: whether it parses, is a valid query, uses existing columns, is exact, and gives the same results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.evaluate.cases import Case
from pipeline.evaluate.components import Counts, compare_parts
from pipeline.evaluate.execution import same_results
from tasks.honeycomb.errors import QueryError, QuerySyntaxError
from tasks.honeycomb.query import Query, canonical_json, check_columns, comparison_key, parse_query


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one answer; `problem` says why it is not valid."""

    line: int
    category: str | None
    nlq: str
    reference: str
    answer: str
    parse: bool
    schema_valid: bool
    column_valid: bool
    exact: bool
    execution: bool
    counts: Counts
    problem: str | None = None


def score_answer(case: Case, text: str) -> Score:
    """Compute all measures of one answer."""
    checked = check_answer(text, case.columns)
    query = checked.query
    exact = checked.column_valid and query is not None and comparison_key(query) == comparison_key(case.reference)
    has_same_results = exact or (checked.column_valid and query is not None and same_results(case.reference, query))
    return Score(
        line=case.line,
        category=case.category,
        nlq=case.nlq,
        reference=canonical_json(case.reference),
        answer=canonical_json(query) if query is not None else text,
        parse=checked.parses,
        schema_valid=query is not None,
        column_valid=checked.column_valid,
        exact=exact,
        execution=has_same_results,
        counts=compare_parts(case.reference, query if checked.column_valid else None),
        problem=checked.problem,
    )


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """What is known of an answer without a reference.

    Args:
        query: None if the text is not a valid query.
        parses: the text is JSON or a Python dict.
        column_valid: it is a valid query, and all its columns exist.
        problem: the first reason why it is not; None if it is.
    """

    query: Query | None
    parses: bool
    column_valid: bool
    problem: str | None


def check_answer(text: str, columns: Sequence[str]) -> CheckedAnswer:
    """Parse and check the text of an answer."""
    try:
        query = parse_query(text, None)
    except QueryError as error:
        return CheckedAnswer(None, not isinstance(error, QuerySyntaxError), False, str(error))
    try:
        check_columns(query, columns)
    except QueryError as error:
        return CheckedAnswer(query, True, False, str(error))
    return CheckedAnswer(query, True, True, None)
