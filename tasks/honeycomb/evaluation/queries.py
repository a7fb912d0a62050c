"""Reads Honeycomb test files, and judges answers against a query, or against all queries that an expert accepts.

A line is {"nlq", "cols", "query"}; the same as corrections have it, {"input": {"nlq", "cols"}, "output": query}; or, in
a chat-style file, {"conversations": […]}. Or it is {"nlq", "cols", "accepted": [query, …], "free": [field, …]} for a
question with several right queries, which may leave some fields open. All may have a "category".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tasks.errors import TaskError
from tasks.evaluation.cases import Case, RefusedReferenceError, Score, collect, read_records
from tasks.honeycomb.canonical import canonical_json, comparison_key
from tasks.honeycomb.columns import parse_columns
from tasks.honeycomb.errors import QueryError, QuerySyntaxError
from tasks.honeycomb.evaluation.comparison import Acceptance, check_free, compare_parts
from tasks.honeycomb.evaluation.execution import same_results
from tasks.honeycomb.options import Surface
from tasks.honeycomb.query import check_columns, parse_query
from tasks.honeycomb.query_type import Query
from tasks.honeycomb.surface import as_written

_ONE: Final = (
    'a line is {"nlq", "cols", "query"}, {"input": {"nlq", "cols"}, "output": query}, or '
    '{"conversations": [{"from", "value"}, …]} with NLQ: "…" and Columns: […] in the human turn'
)
_SEVERAL: Final = 'a line is {"nlq", "cols", "accepted": [query, …], "free": [field, …], "category"}'
_REMEDY: Final = "scripts/dev/make_data writes build/data/test_columns.jsonl"
# The human turn of a chat-style file; the question may contain quotes, so it ends where Columns starts.
_HUMAN: Final = re.compile(r'NLQ:\s*"(?P<nlq>.*?)"\s*Columns:\s*(?P<columns>\[.*\])', re.DOTALL)
_SHOWN: Final = 3  # accepted queries beside a wrong answer; a vague question has hundreds


@dataclass(frozen=True, slots=True)
class QueryEvaluation:
    """See `tasks.evaluation.cases.Evaluation`. The reference of a case is a `Query` or an `Acceptance`."""

    surface: Surface
    name: str = "honeycomb"
    only_input: None = None
    usual_inputs: Mapping[str, Any] = field(default_factory=dict)

    def read_cases(self, path: Path, limit: int | None = None) -> tuple[list[Case], list[str]]:
        """See `Evaluation.read_cases`. The first line says which of the two kinds of cases the file has."""
        first = next(read_records(path, _REMEDY), (0, None))[1]
        if isinstance(first, dict) and "accepted" in first:
            return collect(path, read_records(path, _REMEDY), _refusing(_several), expected=_SEVERAL, limit=limit)
        return collect(path, read_records(path, _REMEDY), _refusing(_one), expected=_ONE, limit=limit)

    def read_inputs(self, path: Path) -> list[Mapping[str, Any]]:
        """See `Evaluation.read_inputs`."""
        return [inputs for inputs, _ in written_answers(path)]

    def reference_text(self, case: Case, constraint: Any) -> str:
        """The query as the model writes it; of several accepted ones the first. See `Evaluation.reference_text`."""
        reference = case.reference
        query = reference.queries[0] if isinstance(reference, Acceptance) else reference
        return as_written(canonical_json(query), self.surface)

    def score(self, case: Case, text: str, error: str | None) -> Score:
        """Whether an answer parses, is a valid query, uses existing columns, and is right.

        Of a case with one query: whether the answer is `exact`, and whether it gives the same results (`execution`).
        """
        checked = check_answer(text, json.loads(case.inputs["cols"]))
        query, reference = checked.query, case.reference
        valid = query if checked.is_column_valid else None
        measures = {
            "parse": checked.parses,
            "schema_valid": query is not None,
            "column_valid": checked.is_column_valid,
        }
        answer = canonical_json(query) if query is not None else text
        if isinstance(reference, Acceptance):
            measures["accepted"] = valid is not None and reference.accepts(valid)
            shown = "\n".join(map(canonical_json, reference.queries[:_SHOWN]))
            right = {} if query is None else reference.right_fields(query)
            return Score(case, case.inputs["nlq"], shown, answer, measures, {}, checked.problem, right)
        measures["exact"] = valid is not None and comparison_key(valid) == comparison_key(reference)
        measures["execution"] = measures["exact"] or (valid is not None and same_results(reference, valid))
        counts = compare_parts(reference, valid)
        right = {} if query is None else Acceptance((reference,), frozenset()).right_fields(query)
        wanted = canonical_json(reference)
        return Score(case, case.inputs["nlq"], wanted, answer, measures, counts, checked.problem, right)


def written_answers(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The inputs of each line with one query, in file order, and its query as it is written there."""
    with path.open(encoding="utf-8") as lines:
        for record in (_flat(json.loads(line)) for line in lines if line.strip()):
            query = record["query"]
            text = query if isinstance(query, str) else json.dumps(query, ensure_ascii=False)
            yield _inputs(record["nlq"], _columns(record["cols"])), text


def _inputs(nlq: str, columns: Sequence[str]) -> dict[str, str]:
    return {"nlq": nlq, "cols": json.dumps(columns, ensure_ascii=False)}


def _refusing(make: Callable[[int, Any], Case]) -> Callable[[int, Any], Case]:
    """Turn the error of a line's own query into `RefusedReferenceError`."""

    def checked(number: int, record: Any) -> Case:
        try:
            return make(number, record)
        except TaskError as error:
            raise RefusedReferenceError(str(error)) from error

    return checked


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A line of {"input", "output"} as {"nlq", "cols", "query"}; others as they are."""
    if "input" not in record:
        return record
    inputs = record["input"]
    return record | {"nlq": inputs["nlq"], "cols": inputs["cols"], "query": record["output"]}


def _one(number: int, record: dict[str, Any]) -> Case:
    record = _flat(record)
    if "conversations" in record:
        nlq, columns, answer = _read_chat(record["conversations"])
    else:
        nlq, columns, answer = record["nlq"], _columns(record["cols"]), record["query"]
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return Case(number, _inputs(nlq, columns), parse_query(text, columns), record.get("category"))


def _several(number: int, record: dict[str, Any]) -> Case:
    check_free(record["free"])
    columns = _columns(record["cols"])
    if not isinstance(record["accepted"], list):
        raise ValueError("accepted is no list")
    queries = tuple(parse_query(json.dumps(query, ensure_ascii=False), columns) for query in record["accepted"])
    if not queries:
        raise ValueError("accepted is empty")
    reference = Acceptance(queries, frozenset(record["free"]))
    return Case(number, _inputs(record["nlq"], columns), reference, record.get("category"))


def _columns(cols: Any) -> tuple[str, ...]:
    return parse_columns(cols) if isinstance(cols, str) else tuple(cols)


def _read_chat(turns: list[dict[str, str]]) -> tuple[str, tuple[str, ...], str]:
    found = [_HUMAN.search(t["value"]) for t in turns if t["from"] == "human"]
    answers = [t["value"] for t in turns if t["from"] == "gpt"]
    if not answers or not found or found[0] is None:
        raise ValueError("the first human turn has no NLQ and Columns, or no turn is from gpt")
    return found[0]["nlq"], parse_columns(found[0]["columns"]), answers[0]


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """What is known of an answer without a reference.

    Args:
        query: None if the text is not a valid query.
        parses: the text is JSON or a Python dict.
        is_column_valid: it is a valid query, and all its columns exist.
        problem: the first reason why it is not; None if it is.
    """

    query: Query | None
    parses: bool
    is_column_valid: bool
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
