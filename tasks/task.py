"""The interface of tasks, which turn a call's inputs into a prompt and a model's text into a checked answer.

A task is a folder with a `task.py` that defines `create(folder, tokenizer)`, and one line in `TASKS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.constraints import Constraint
from serving.text import Tokenizer
from serving.types import FinishReason, SamplingParams
from tasks.errors import TaskFileError
from tasks.json_text import parse_json

TASK_FILE: Final = "task.json"  # lies beside the checkpoint
TASKS: Final = {
    "honeycomb": "tasks.honeycomb.task",
    "schema": "tasks.schema.task",
    "chat": "tasks.chat.task",
}
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
        """Check the inputs of one call and make its prompt.

        Args:
            inputs: values by the names of `predict`'s parameters; omitted inputs have their defaults.

        Raises:
            InputError: an input is wrong.
        """
        ...


@runtime_checkable
class MarkedTask(Protocol):
    """A task that says where a draft model begins to read its prompts. Of other tasks, the prompts show it."""

    def draft_markers(self) -> tuple[str, ...]:
        """Texts that occur once in a prompt. A draft model reads a prompt from the first that leaves it enough room."""
        ...


class TaskFile(BaseModel):
    """task.json: which task a checkpoint was trained for, and the task's own options in a subclass.

    Args:
        task: the name in `TASKS`.
        name: of the model, for people.
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
    return cast(Task, importlib.import_module(TASKS[task_name(folder)]).create(folder, tokenizer))


def task_name(folder: Path) -> str:
    """The `task` of a checkpoint's task.json.

    Raises:
        TaskFileError: the file is missing, or names no known task.
    """
    path = folder / TASK_FILE
    try:
        content = parse_json(_read(path))
    except ValueError as error:
        raise TaskFileError(f"{path} is not JSON: {error}. A valid file: {_EXAMPLE}") from error
    name = content.get("task") if isinstance(content, dict) else None
    if not isinstance(name, str) or name not in TASKS:
        known = ", ".join(TASKS)
        raise TaskFileError(f"{path}: task is {name!r}; known are {known}. A valid file: {_EXAMPLE}")
    return name


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskFileError(
            f"{path}: cannot read how the model is asked: {error.strerror}. Write one such as {_EXAMPLE}"
        ) from error
