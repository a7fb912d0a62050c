"""Read questions of any task from a JSONL file of inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.bench.questions import Question, QuestionError
from tasks.evaluation.cases import Evaluation

_EXPECTED = 'a line is {"input": {the inputs of predict}}; further keys are left alone'


class RequestFile:
    """See `Questions`. Each draw takes the next lines, starting again after the last one.

    Args:
        questions: at least one.
        warm_up: other questions, for warming up.
    """

    def __init__(self, questions: Sequence[Question], warm_up: Sequence[Question] = ()) -> None:
        self.warm_up = warm_up
        self._questions = questions
        self._drawn: dict[tuple[str, int, int], int] = {}  # arguments of `draw`: index of its first question
        self._taken = 0

    def __len__(self) -> int:
        return len(self._questions)

    @property
    def is_repeated(self) -> bool:
        """Whether a question was in two draws, so that a prefix cache may have seen it."""
        return self._taken > len(self._questions)

    def draw(self, count: int, seed: str, number: int = 0) -> list[Question]:
        """See `Questions.draw`."""
        key = seed, number, count
        if key not in self._drawn:
            self._drawn[key] = self._taken
            self._taken += count
        first = self._drawn[key]
        return [self._questions[(first + i) % len(self._questions)] for i in range(count)]

    def before(self, questions: Sequence[Question], number: int) -> list[Question]:
        """The same questions, because others with the same prefixes are not known."""
        return list(questions)


def read_requests(path: Path, evaluation: Evaluation) -> list[Question]:
    """The requests of a file, in the format of scripts/evaluate.

    Args:
        path: of the JSONL.
        evaluation: of the task; it determines whether an input may be a string.

    Raises:
        QuestionError: a line has another form, or there are fewer than two.
        OSError: the file cannot be read.
    """
    lines = [line for line in enumerate(path.read_text("utf-8").splitlines(), start=1) if line[1].strip()]
    if len(lines) < 2:
        raise QuestionError(f"{path}: {len(lines)} requests; give at least two, one of them to warm up")
    return [_question(path, number, line, evaluation) for number, line in lines]


def _question(path: Path, number: int, line: str, evaluation: Evaluation) -> Question:
    try:
        given: Any = json.loads(line)["input"]
    except (ValueError, KeyError, TypeError) as error:
        raise QuestionError(f"{path}:{number}: {_EXPECTED} ({error!r})") from error
    if isinstance(given, str) and evaluation.only_input is not None:
        return Question({evaluation.only_input: given})
    if not isinstance(given, dict):
        raise QuestionError(f"{path}:{number}: {_EXPECTED}; here input is {json.dumps(given)[:60]}")
    return Question(given)
