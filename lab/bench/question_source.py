"""Choose the questions for the task of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from lab.bench.asker import Asker
from lab.bench.honeycomb_questions import REQUESTS, HoneycombQuestions, read_teams
from lab.bench.protocol import Dialect
from lab.bench.questions import Question, QuestionError, Questions
from lab.bench.request_file import RequestFile, read_requests
from tasks.errors import TaskError
from tasks.task import create_evaluation


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


def _checked(path: Path, questions: list[Question], asker: Asker) -> list[Question]:
    """The questions, after checking all inputs, so that no run fails in its middle."""
    for number, question in enumerate(questions, start=1):
        try:
            asker.ask("", question, Dialect.NONE, max_tokens=1)
        except TaskError as error:
            raise QuestionError(f"{path}: request {number}: {error}") from error
    return questions
