"""The questions: committed ones for Honeycomb, with column lists in random order, or those of a file."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.bench.asker import Asker, Inputs
from tasks.errors import TaskError
from tasks.evaluation.cases import Evaluation
from tasks.task import create_evaluation

REQUESTS = Path(__file__).with_name("requests.jsonl")
_EXPECTED = 'a line is {"input": {the inputs of predict}}; further keys are left alone'


class QuestionError(Exception):
    """A question or a file of questions is invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class Team:
    """The columns of a team and its questions."""

    columns: tuple[str, ...]
    questions: tuple[str, ...]


class HoneycombQuestions:
    """A source of questions, the same for every engine; a new order of columns makes prompts that no cache has seen."""

    warm_up = (
        {"nlq": "count of everything", "cols": '["left", "right"]'},
        {"nlq": "newest", "cols": '["up", "down", "strange"]'},
    )

    def __init__(self, teams: Sequence[Team]) -> None:
        self._teams = teams

    def __len__(self) -> int:
        return len(self._teams)

    def draw(self, count: int, seed: str, number: int = 0) -> list[Inputs]:
        """Questions of different teams, with shuffled columns; after all teams, each asks its next question.

        They are the same for the same seed and number, and others for another seed.
        """
        rng = random.Random(seed)
        found: list[Inputs] = []
        for i in range(count):
            team = self._teams[i % len(self._teams)]
            columns = list(team.columns)
            rng.shuffle(columns)
            place = (number + i // len(self._teams)) % len(team.questions)
            found.append({"nlq": team.questions[place], "cols": json.dumps(columns)})
        return found

    def before(self, questions: Sequence[Inputs], number: int) -> list[Inputs]:
        """Another question of each team with the same columns in the same order, to fill a prefix cache."""
        asked = [self._teams[i % len(self._teams)].questions for i in range(len(questions))]
        return [
            {**inputs, "nlq": texts[(number + 1) % len(texts)]} for inputs, texts in zip(questions, asked, strict=True)
        ]


class RequestFile:
    """See `HoneycombQuestions`. Each draw takes the next of the questions, starting again after the last one."""

    def __init__(self, questions: Sequence[Inputs], warm_up: Sequence[Inputs] = ()) -> None:
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

    def draw(self, count: int, seed: str, number: int = 0) -> list[Inputs]:
        """See `HoneycombQuestions.draw`."""
        key = seed, number, count
        if key not in self._drawn:
            self._drawn[key] = self._taken
            self._taken += count
        first = self._drawn[key]
        return [self._questions[(first + i) % len(self._questions)] for i in range(count)]

    def before(self, questions: Sequence[Inputs], number: int) -> list[Inputs]:
        """The same questions, because others with the same prefixes are not known."""
        return list(questions)


Questions = HoneycombQuestions | RequestFile


def measured_questions(weights: Path, asker: Asker, requests: Path | None) -> Questions:
    """The questions of a file; without one, the committed questions of the Honeycomb task.

    Raises:
        QuestionError: there is no file for another task, or a question is invalid.
        OSError: the file cannot be read.
    """
    if asker.task_name == "honeycomb":
        return HoneycombQuestions(read_teams(requests or REQUESTS))
    if requests is None:
        raise QuestionError(
            f"the weights are of a {asker.task_name} task, for which no requests come with the benchmark; give "
            '--requests FILE, with lines of {"input": {the inputs of predict}}'
        )
    *questions, last = _checked(requests, read_requests(requests, create_evaluation(weights)), asker)
    return RequestFile(questions, warm_up=[last])


def evaluation_questions(weights: Path, asker: Asker, file: Path, limit: int) -> Questions:
    """The first questions of a file, for counting passes.

    Raises:
        QuestionError: a line is not a valid question of the task.
        OSError: the file cannot be read.
    """
    if asker.task_name == "honeycomb":
        return HoneycombQuestions(read_teams(file)[:limit])
    return RequestFile(_checked(file, read_requests(file, create_evaluation(weights)), asker)[:limit])


def read_teams(path: Path = REQUESTS) -> list[Team]:
    """Read a file with one JSON object on each line: {cols, questions}, or {cols, nlq} as in the training data.

    Raises:
        QuestionError: a line has another form.
    """
    teams = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
            teams.append(Team(tuple(record["cols"]), tuple(record.get("questions") or [record["nlq"]])))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise QuestionError(
                f"{path}:{number}: a line is {{cols, questions}} or {{cols, nlq}} ({error!r})"
            ) from error
    return teams


def read_requests(path: Path, evaluation: Evaluation) -> list[Inputs]:
    """The requests of a JSONL file, in the format of scripts/evaluate; the task says whether an input may be a string.

    Raises:
        QuestionError: a line has another form, or there are fewer than two.
        OSError: the file cannot be read.
    """
    lines = [line for line in enumerate(path.read_text("utf-8").splitlines(), start=1) if line[1].strip()]
    if len(lines) < 2:
        raise QuestionError(f"{path}: {len(lines)} requests; give at least two, one of them to warm up")
    return [_inputs(path, number, line, evaluation) for number, line in lines]


def _inputs(path: Path, number: int, line: str, evaluation: Evaluation) -> Inputs:
    try:
        given: Any = json.loads(line)["input"]
    except (ValueError, KeyError, TypeError) as error:
        raise QuestionError(f"{path}:{number}: {_EXPECTED} ({error!r})") from error
    if isinstance(given, str) and evaluation.only_input is not None:
        return {evaluation.only_input: given}
    if not isinstance(given, dict):
        raise QuestionError(f"{path}:{number}: {_EXPECTED}; here input is {json.dumps(given)[:60]}")
    return given


def _checked(path: Path, questions: list[Inputs], asker: Asker) -> list[Inputs]:
    """The questions, after checking all inputs, so that no run fails in its middle."""
    for number, inputs in enumerate(questions, start=1):
        try:
            asker.ask("", inputs, max_tokens=1)
        except TaskError as error:
            raise QuestionError(f"{path}: request {number}: {error}") from error
    return questions
