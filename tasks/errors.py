"""The errors of task files, inputs and answers.

TaskError
├── TaskFileError    task.json is missing or wrong
├── InputError       an input is wrong; the caller must change it
├── OutputError      the model's answer must not be returned
└── CaseFileError    a file of cases cannot be used
"""

from __future__ import annotations


class TaskError(Exception):
    """Base of the errors of all tasks."""


class TaskFileError(TaskError):
    """task.json is missing or wrong; the message shows a valid one."""


class InputError(TaskError):
    """An input is wrong.

    Args:
        name: the input's name in `predict`.
        problem: what is wrong, with the limit.
        remedy: what to do about it.
    """

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        super().__init__(f"{name}: {problem}; {remedy}")
        self.name = name


class OutputError(TaskError):
    """The model's answer must not be returned; the message says why."""


class CaseFileError(TaskError):
    """A file of cases cannot be used; the message says why."""
