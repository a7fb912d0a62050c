"""One answer against its reference.

Owns: the order of the checks: it parses, it is a query, its columns exist, it is the same query,
it finds the same. Knows nothing of engines.

    score = score_answer(case, '{"calculations": [{"op": "COUNT"}]}')
"""

from __future__ import annotations

from dataclasses import dataclass

from honeycomb.errors import QueryError, QuerySyntaxError
from honeycomb.query import Query, canonical_json, check_columns, comparison_key, parse_query
from scripts.evaluation.cases import Case
from scripts.evaluation.components import Counts, compare_parts
from scripts.evaluation.execution import same_results


@dataclass(frozen=True, slots=True)
class Score:
    """One line of a result file. `problem` says why an answer is not valid."""

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
    """All measures of one answer."""
    query, parses, problem = _read(text)
    columns_exist = False
    if query is not None:
        try:
            check_columns(query, case.columns)
            columns_exist = True
        except QueryError as error:
            problem = str(error)
    exact = columns_exist and query is not None and comparison_key(query) == comparison_key(case.reference)
    found_same = exact or (columns_exist and query is not None and same_results(case.reference, query))
    return Score(
        line=case.line,
        category=case.category,
        nlq=case.nlq,
        reference=canonical_json(case.reference),
        answer=canonical_json(query) if query is not None else text,
        parse=parses,
        schema_valid=query is not None,
        column_valid=columns_exist,
        exact=exact,
        execution=found_same,
        counts=compare_parts(case.reference, query if columns_exist else None),
        problem=problem,
    )


def _read(text: str) -> tuple[Query | None, bool, str | None]:
    """The query, whether the text parses at all, and what is wrong."""
    try:
        return parse_query(text, None), True, None
    except QuerySyntaxError as error:
        return None, False, str(error)
    except QueryError as error:
        return None, True, str(error)
