"""The interface between scripts/evaluate and a task: cases, scores, and reading cases from JSONL files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tasks.errors import CaseFileError
from tasks.json_text import WrittenFloat

Counts = Mapping[str, tuple[int, int, int]]  # part of an answer: items that are right, given, expected
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Case:
    """A question and its reference answer.

    Args:
        line: the line in its file, from 1, which identifies the case in results.
        inputs: the inputs by the names of predict's parameters.
        reference: the right answer, in the form that the task's evaluation uses.
        category: the kind of question, by which results are shown.
        schema: the schema of the answer, where answers are compared as JSON.
    """

    line: int
    inputs: Mapping[str, Any]
    reference: Any
    category: str | None = None
    schema: Any = None


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one answer.

    Args:
        case: what was asked.
        question: the case's inputs as text.
        reference: the right answer as text.
        answer: the answer that came, as text.
        measures: what is true of the answer, in the order of tables. One is `accepted` or `exact`: whether the answer
            is right. It and those after it are also shown by category.
        counts: items of the answer, where it has parts that are compared one by one.
        problem: why the answer is not valid; None if it is.
        fields: whether each field of a JSON answer is right, by its pointer (`tasks.confidence`), where that is known.
    """

    case: Case
    question: str
    reference: str
    answer: str
    measures: Mapping[str, bool]
    counts: Counts
    problem: str | None = None
    fields: Mapping[str, bool] = field(default_factory=dict)


class Evaluation(Protocol):
    """How a task's cases are read and its answers judged."""

    @property
    def name(self) -> str:
        """The task's name, for result files."""
        ...

    @property
    def only_input(self) -> str | None:
        """The input that a case may give as a plain text; None where there are several."""
        ...

    @property
    def usual_inputs(self) -> Mapping[str, Any]:
        """Inputs that a case has unless it says otherwise, such as a temperature of 0."""
        ...

    def read_cases(self, path: Path, limit: int | None = None) -> tuple[list[Case], list[str]]:
        """The cases, and a message for each line whose reference is not a valid answer.

        Raises:
            CaseFileError: a line has another format, or no line can be used.
        """
        ...

    def read_inputs(self, path: Path) -> list[Mapping[str, Any]]:
        """The inputs of each line, which needs no answer.

        Raises:
            CaseFileError: a line has another format, or there is none.
        """
        ...

    def reference_text(self, case: Case, constraint: Any) -> str:
        """The reference of a case as the model writes it; `constraint` is that of the case's prompt.

        Raises:
            TaskError: the model cannot write it.
        """
        ...

    def score(self, case: Case, text: str, error: str | None) -> Score:
        """Judge the answer to a case; where the task refused it, `text` is the model's, and `error` is why."""
        ...


class RefusedReferenceError(Exception):
    """The reference of a line is itself not a valid answer; the message says why."""


def read_records(path: Path, remedy: str) -> Iterator[tuple[int, Any]]:
    """The values of a JSONL file with their line numbers; numbers know the digits that they are written with.

    Raises:
        CaseFileError: the file does not exist (the message has the remedy), or a line is not JSON.
    """
    if not path.is_file():
        raise CaseFileError(f"{path} does not exist; {remedy}")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line, parse_float=WrittenFloat)
                except ValueError as error:
                    raise CaseFileError(f"{path}:{number}: not JSON: {error}") from error


def collect(
    path: Path,
    records: Iterable[tuple[int, Any]],
    make: Callable[[int, Any], Item],
    *,
    expected: str,
    limit: int | None,
) -> tuple[list[Item], list[str]]:
    """Make something of each record of a file, at most `limit`.

    Args:
        path: the file's path, for messages.
        records: line numbers and JSON values.
        make: makes it of one record. Raises RefusedReferenceError, or KeyError, TypeError or ValueError for another
            format.
        expected: what a line looks like.
        limit: None for all.

    Returns:
        What was made, and a message for each line whose reference was refused.

    Raises:
        CaseFileError: a line has another format, or no line can be used.
    """
    made: list[Item] = []
    refused: list[str] = []
    for number, record in records:
        if limit is not None and len(made) >= limit:
            break
        try:
            made.append(make(number, record))
        except RefusedReferenceError as error:
            refused.append(f"{path.name}:{number}: {error}")
        except (KeyError, TypeError, ValueError) as error:
            raise CaseFileError(f"{path}:{number}: {expected} ({error!r})") from error
    if not made:
        raise CaseFileError(f"{path}: no usable line; {expected}")
    return made, refused
