"""Judge Honeycomb answers by acceptance: a question has several right queries, and may leave some fields open.

A line of the file is {"nlq", "cols", "accepted": [query, …], "free": [field, …], "category"}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.evaluate.answering import Answer
from pipeline.evaluate.cases import RefusedReference, collect_cases, read_records
from pipeline.evaluate.intervals import share
from pipeline.evaluate.scoring import check_answer
from tasks.errors import TaskError
from tasks.honeycomb.columns import parse_columns
from tasks.honeycomb.query import Query, canonical_json, comparison_key, parse_query

FREE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (name,) for name in Query.model_fields},
    "time_range": ("time_range", "start_time", "end_time"),
}
_MEASURES: Final = ("parse", "schema_valid", "column_valid", "accepted")
_EXPECTED: Final = 'a line is {"nlq", "cols", "accepted": [query, …], "free": [field, …], "category"}'
_SHOWN: Final = 3  # accepted queries beside a wrong answer; a vague question has hundreds
_SINGLE: Final = {"in": "=", "not-in": "!="}


@dataclass(frozen=True, slots=True)
class AcceptanceCase:
    """A question and all queries that an expert accepts as its answer.

    Args:
        line: in the file, from 1.
        nlq: the question.
        columns: the names that the query may use.
        accepted: at least one query.
        free: fields of the query that may have any value.
        category: the kind of question.
    """

    line: int
    nlq: str
    columns: tuple[str, ...]
    accepted: tuple[Query, ...]
    free: frozenset[str]
    category: str | None = None


@dataclass(frozen=True, slots=True)
class AcceptanceScore:
    """The score of one answer; `problem` says why it is not valid."""

    case: AcceptanceCase
    answer: str
    parse: bool
    schema_valid: bool
    column_valid: bool
    accepted: bool
    problem: str | None

    @property
    def line(self) -> int:
        """The line of the case."""
        return self.case.line


def is_acceptance_file(path: Path) -> bool:
    """Whether the first line of a file of cases has a list of accepted queries."""
    if not path.is_file():
        return False
    first = next(read_records(path, "name a file of cases"), None)
    return first is not None and isinstance(first[1], dict) and "accepted" in first[1]


def read_acceptance_cases(path: Path, limit: int | None = None) -> tuple[list[AcceptanceCase], list[str]]:
    """The cases, and a message for each line with an accepted query that is not valid.

    Raises:
        CaseFileError: a line has another format, or no line can be used.
    """

    def make(number: int, record: Any) -> AcceptanceCase:
        try:
            return _case(number, record)
        except TaskError as error:
            raise RefusedReference(str(error)) from error

    return collect_cases(path, read_records(path, "name a file of cases"), make, expected=_EXPECTED, limit=limit)


def _case(number: int, record: dict[str, Any]) -> AcceptanceCase:
    if unknown := set(record["free"]) - set(FREE_FIELDS):
        raise ValueError(f"free names {sorted(unknown)}; the fields are {sorted(FREE_FIELDS)}")
    columns = parse_columns(record["cols"]) if isinstance(record["cols"], str) else tuple(record["cols"])
    if not isinstance(record["accepted"], list):
        raise ValueError("accepted is no list")
    accepted = tuple(parse_query(json.dumps(query, ensure_ascii=False), columns) for query in record["accepted"])
    if not accepted:
        raise ValueError("accepted is empty")
    return AcceptanceCase(number, record["nlq"], columns, accepted, frozenset(record["free"]), record.get("category"))


def accepts(case: AcceptanceCase, query: Query) -> bool:
    """Whether the query means the same as one of the accepted ones, apart from the free fields."""
    return _key(query, case.free) in {_key(accepted, case.free) for accepted in case.accepted}


def _key(query: Query, free: frozenset[str]) -> str:
    """A text that is equal for two queries with the same meaning.

    Numbers equal their strings, `in` with one value equals `=`, and only the order of `orders` matters.
    """
    key = json.loads(comparison_key(query))
    for field in (part for name in free for part in FREE_FIELDS[name]):
        key.pop(field, None)
    filters = [_plain_filter(json.loads(text)) for text in key.get("filters", [])]
    key["filters"] = sorted(json.dumps(clause, sort_keys=True) for clause in filters)
    if len(filters) < 2:
        key.pop("filter_combination", None)
    for unordered in ("calculations", "breakdowns"):
        if unordered in key:
            key[unordered] = sorted(json.dumps(part, sort_keys=True) for part in key[unordered])
    return json.dumps(key, sort_keys=True)


def _plain_filter(clause: dict[str, Any]) -> dict[str, Any]:
    value = clause.get("value")
    if isinstance(value, list):
        texts = sorted(map(_text, value))
        if len(texts) == 1:
            return {**clause, "op": _SINGLE[clause["op"]], "value": texts[0]}
        return {**clause, "value": texts}
    return clause if value is None else {**clause, "value": _text(value)}


def _text(value: Any) -> str:
    """A value as text, so that 5 and 5.0 equal "5", and true equals "true"; different strings stay different."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def score_acceptance(cases: Sequence[AcceptanceCase], answers: Mapping[int, Answer]) -> Iterator[AcceptanceScore]:
    """Scores in the order of the cases."""
    for case in cases:
        yield _score(case, answers[case.line].text)


def _score(case: AcceptanceCase, text: str) -> AcceptanceScore:
    checked = check_answer(text, case.columns)
    query = checked.query
    return AcceptanceScore(
        case=case,
        answer=canonical_json(query) if query is not None else text,
        parse=checked.parses,
        schema_valid=query is not None,
        column_valid=checked.column_valid,
        accepted=checked.column_valid and query is not None and accepts(case, query),
        problem=checked.problem,
    )


def summarize_acceptance(scores: Sequence[AcceptanceScore], about: dict[str, Any]) -> dict[str, Any]:
    """The content of a result file; `about` describes the run."""
    ordered = sorted(scores, key=lambda s: s.line)
    kinds = sorted({s.case.category for s in ordered if s.case.category is not None})
    by_kind = {kind: [s for s in ordered if s.case.category == kind] for kind in kinds}
    return {
        **about,
        "n": len(ordered),
        **{name: share([getattr(s, name) for s in ordered]) for name in _MEASURES},
        "f1": {},
        "categories": {
            kind: {"n": len(of_kind), "accepted": share([s.accepted for s in of_kind])}
            for kind, of_kind in by_kind.items()
        },
        "failures": [_failure(s) for s in ordered if not s.accepted],
        "scores": [{"line": s.line, **{name: getattr(s, name) for name in _MEASURES}} for s in ordered],
    }


def _failure(score: AcceptanceScore) -> dict[str, Any]:
    case = score.case
    return {
        "line": score.line,
        "category": case.category,
        "nlq": case.nlq,
        "reference": "\n".join(map(canonical_json, case.accepted[:_SHOWN])),
        "answer": score.answer,
        "problem": score.problem,
        **{name: getattr(score, name) for name in _MEASURES},
    }
