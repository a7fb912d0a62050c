"""The interface of tasks, which turn a call's inputs into a prompt and a model's text into a checked answer.

A task is a module with the functions of `TaskModule`. A task file names one of `TASKS`, or the module itself:
`"task": "my_package.my_task"`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.constraints import Constraint
from serving.text import Tokenizer
from serving.types import FinishReason, SamplingParams
from tasks.errors import TaskFileError
from tasks.evaluation.cases import Evaluation
from tasks.json_text import parse_json

TASK_FILE: Final = "task.json"  # lies beside the checkpoint
LIMIT_WORDS: Final = (
    "Maximum tokens of the answer"  # in a template's predict.py; the task file's default comes after it
)
TASKS: Final = {
    "honeycomb": "tasks.honeycomb.task",
    "schema": "tasks.schema.task",
    "chat": "tasks.chat.task",
}
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_EXAMPLE: Final = '{"task": "chat", "name": "my-model"}'


class Reader(Protocol):
    """Reads one answer while it is generated. The texts that `push` and `finish` return form the final output."""

    def push(self, text: str) -> str:
        """Take a delta of the model's text; return what may be shown now and can no longer change."""
        ...

    def finish(self, reason: FinishReason) -> str:
        """Check the whole answer; return the part that has not been shown yet.

        Raises:
            OutputError: the answer must not be returned.
        """
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the prediction's log; complete after `finish`."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one call, and how to generate and read its answer.

    Args:
        token_ids: the prompt's tokens, with BOS if the checkpoint needs one.
        sampling: how tokens are chosen.
        constraint: what the model's text must match; None for free text.
        reader: reads this answer.
    """

    token_ids: tuple[int, ...]
    sampling: SamplingParams
    constraint: Constraint | None
    reader: Reader


class Task(Protocol):
    """What one checkpoint was trained to do. Several threads use it at the same time."""

    @property
    def long_inputs(self) -> str:
        """Names of the inputs that make a prompt long, such as `nlq and cols`, for error messages."""
        ...

    @property
    def shorten_hint(self) -> str:
        """The remedy for a prompt that is too long, such as `give fewer columns`, for error messages."""
        ...

    def prepare(self, inputs: Mapping[str, Any]) -> Prompt:
        """Check the inputs of one call, by the names of `predict`'s parameters, and make its prompt.

        Omitted inputs have their defaults.

        Raises:
            InputError: an input is wrong.
        """
        ...


@runtime_checkable
class MarkedTask(Protocol):
    """A task that says where a draft model begins to read its prompts.

    For other tasks, the beginning that all prompts share shows it.
    """

    def draft_markers(self) -> tuple[str, ...]:
        """Texts that occur once in a prompt. A draft model reads a prompt from the first that leaves it enough room."""
        ...


@runtime_checkable
class ExampleTask(Protocol):
    """A task with many written answers, which a draft model learns in place of the checkpoint's own."""

    def read_examples(self, path: Path) -> Iterator[tuple[Mapping[str, Any], Sequence[int], Sequence[int]]]:
        """For each line of a file its inputs, and the token ids of its prompt and of its answer as it is there."""
        ...


@runtime_checkable
class CorrectableTask(Protocol):
    """A task that reads answers of people, who write JSON with line ends, or keys in another order."""

    def as_written(self, inputs: Mapping[str, Any], answer: str) -> str:
        """A person's answer to these inputs as the model is to write it.

        Raises:
            InputError: an input is wrong.
            OutputError: it is no answer of this task; the message says why.
        """
        ...


@runtime_checkable
class ConventionalTask(Protocol):
    """A task whose training data always has something that people leave out of corrections where any will do.

    Learned without it, a few corrections would make the model leave it out everywhere.
    """

    def as_learned(self, answer: str) -> str:
        """An answer as `CorrectableTask.as_written` gives it, with what people leave out."""
        ...


class TaskModule(Protocol):
    """What a task's module defines. `content` is that of a task file, `folder` has the file and a checkpoint."""

    def create(self, folder: Path, tokenizer: Tokenizer) -> Task:
        """The task of a checkpoint.

        Raises:
            TaskFileError: the task file is wrong.
        """
        ...

    def example_inputs(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Inputs for the commands that READMEs show, and that are asked when a package is tried."""
        ...

    def predict_source(self, content: Mapping[str, Any]) -> str:
        """Python source of a new package's predict.py: `Predictor`, a `serving.predictor.TaskPredictor`."""
        ...

    def evaluation(self, folder: Path) -> Evaluation:
        """How scripts/evaluate reads cases and judges answers.

        Raises:
            TaskFileError: the task file is wrong.
        """
        ...


class TaskFile(BaseModel):
    """task.json: which task a checkpoint was trained for, and the task's own options in a subclass.

    Args:
        task: a name of `TASKS`, or of a module.
        name: the model's name, for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    task: str
    name: str = Field(min_length=1, max_length=100)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the file in a checkpoint's folder.

        Raises:
            TaskFileError: there is none, or it holds something else.
        """
        path = folder / TASK_FILE
        try:
            return cls.model_validate_json(_read(path))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
            raise TaskFileError(f"{path}: {wrong}. A valid file: {cls.example()}") from error

    @classmethod
    def example(cls) -> str:
        """A file that works, as JSON text."""
        return _EXAMPLE


def create_task(folder: Path, tokenizer: Tokenizer) -> Task:
    """The task that the checkpoint's task.json names; imports that one only.

    Raises:
        TaskFileError: the file is missing, wrong, or names an unknown task.
    """
    return task_module(task_name(folder)).create(folder, tokenizer)


def create_evaluation(folder: Path) -> Evaluation:
    """How the answers of the task in a folder's task.json are judged.

    Raises:
        TaskFileError: the file is missing, wrong, or names an unknown task.
    """
    return task_module(task_name(folder)).evaluation(folder)


def task_module(name: str) -> TaskModule:
    """The module of a task.

    Raises:
        TaskFileError: there is no such task, or its module lacks a function.
    """
    _check_name(name)
    try:
        module = importlib.import_module(TASKS.get(name, name))
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the task's module is there, and imports what is missing
        raise TaskFileError(
            f"task is {name!r}, and there is no module {error.name}; put its folder beside predict.py, or install it"
        ) from error
    if missing := [wanted for wanted in _functions() if not callable(getattr(module, wanted, None))]:
        raise TaskFileError(f"task is {name!r}, and that module does not define {' and '.join(missing)}")
    return cast(TaskModule, module)


def _check_name(name: object) -> None:
    """Refuse what names no task. A module of Python's own could do anything when it is imported, so it is no task."""
    if isinstance(name, str) and name in TASKS:
        return
    if isinstance(name, str) and _MODULE.fullmatch(name) and name.partition(".")[0] not in sys.stdlib_module_names:
        return
    known = ", ".join(TASKS)
    raise TaskFileError(f"task is {name!r}; known are {known}, and modules of your own such as my_package.my_task")


def _functions() -> list[str]:
    return [name for name, value in vars(TaskModule).items() if callable(value) and not name.startswith("_")]


def task_name(folder: Path) -> str:
    """The `task` of a checkpoint's task.json.

    Raises:
        TaskFileError: the file is missing, or names no task.
    """
    return str(read_task_file(folder)["task"])


def read_task_file(folder: Path) -> dict[str, Any]:
    """The content of a checkpoint's task.json, of which only the task's name is checked.

    Raises:
        TaskFileError: the file is missing, or names no task.
    """
    path = folder / TASK_FILE
    try:
        content = parse_json(_read(path))
    except ValueError as error:
        raise TaskFileError(f"{path} is not JSON: {error}. A valid file: {_EXAMPLE}") from error
    name = content.get("task") if isinstance(content, dict) else None
    try:
        _check_name(name)
    except TaskFileError as error:
        raise TaskFileError(f"{path}: {error}. A valid file: {_EXAMPLE}") from error
    return cast(dict[str, Any], content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskFileError(
            f"{path}: cannot read how the model is asked: {error.strerror}. Write one such as {_EXAMPLE}"
        ) from error
