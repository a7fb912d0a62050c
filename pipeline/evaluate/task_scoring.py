"""Score an answer of a schema or chat task against its reference."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonschema import ValidationError

from pipeline.evaluate.answering import Answer
from pipeline.evaluate.json_fields import Counts, canonical, compare_fields, fields
from pipeline.evaluate.task_cases import TaskCase, validate


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One line of a result file.

    Args:
        line: of the case.
        category: of the case.
        question: its inputs as text.
        reference: the right answer as text.
        answer: what came, as text.
        valid: it is JSON of the schema; where there is none, the task returned it.
        exact: it is the reference: the same JSON value, or the same text but for outer white space.
        counts: of fields, where there is a schema.
        problem: why it is not valid.
    """

    line: int
    category: str | None
    question: str
    reference: str
    answer: str
    valid: bool
    exact: bool
    counts: Counts
    problem: str | None = None


def score_task_answers(cases: Sequence[TaskCase], answers: Mapping[int, Answer]) -> Iterator[TaskScore]:
    """Scores in the order of the cases."""
    for case in cases:
        yield (_score_text if case.schema is None else _score_json)(case, answers[case.line])


def _score_text(case: TaskCase, answer: Answer) -> TaskScore:
    valid = answer.error is None
    exact = valid and answer.text.strip() == case.reference.strip()
    return _score(case, case.reference, answer.text, valid, exact, {}, answer.error)


def _score_json(case: TaskCase, answer: Answer) -> TaskScore:
    reference = canonical(case.reference)
    try:
        value = json.loads(answer.text)
    except ValueError as error:
        counts = compare_fields(case.reference, Counter())
        return _score(case, reference, answer.text, False, False, counts, answer.error or f"not JSON: {error}")
    problem = answer.error
    try:
        validate(case.schema, value)
    except ValidationError as error:
        problem = problem or error.message
    valid, text = problem is None, canonical(value)
    return _score(
        case, reference, text, valid, text == reference, compare_fields(case.reference, fields(value)), problem
    )


def _score(
    case: TaskCase, reference: str, answer: str, valid: bool, exact: bool, counts: Counts, problem: str | None
) -> TaskScore:
    return TaskScore(case.line, case.category, _question(case.inputs), reference, answer, valid, exact, counts, problem)


def _question(inputs: Mapping[str, Any]) -> str:
    texts = [value for value in inputs.values() if isinstance(value, str)]
    return texts[0] if len(inputs) == 1 and texts else json.dumps(dict(inputs), ensure_ascii=False)
