"""The task file of a Honeycomb model: its prompt template and the form of its answers."""

from __future__ import annotations

from typing import Literal

from tasks.task import TaskFile

PromptTemplate = Literal["question-first", "columns-first"]
Surface = Literal["json", "python-repr"]
Values = Literal["any", "copied"]


class HoneycombOptions(TaskFile):
    """task.json of a Honeycomb model.

    Args:
        prompt: a template of `tasks.honeycomb.prompt`.
        surface: the form of answers: JSON, or a Python dict in double quotes, as in the running example.
        values: strings, numbers and times that queries may have: any, or only what the question can mean.
    """

    task: Literal["honeycomb"]
    prompt: PromptTemplate
    surface: Surface
    values: Values = "any"

    @classmethod
    def example(cls) -> str:
        """A valid file, as JSON text."""
        return '{"task": "honeycomb", "name": "my-model", "prompt": "columns-first", "surface": "json"}'
