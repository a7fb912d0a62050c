"""The properties of a task that its evaluation needs: its schema and the name of its only input."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.chat.answer_schema import read_answer_schema
from tasks.errors import TaskFileError
from tasks.schema.options import SchemaOptions
from tasks.task import task_name


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A task whose answers are compared as JSON or as text.

    Args:
        name: as task.json has it.
        only_input: the input that a case may give as a plain text; None where there are several.
        schema_of: from a case's inputs to the schema of the answer; None for free text.
    """

    name: str
    only_input: str | None
    schema_of: Callable[[Mapping[str, Any]], Any]


def task_kind(folder: Path) -> TaskKind:
    """The kind that a folder's task.json names.

    Raises:
        TaskFileError: the file is wrong, or names a task that is compared in its own way.
    """
    match task_name(folder):
        case "schema":
            options = SchemaOptions.load(folder)
            schema = options.read_schema(folder)
            return TaskKind("schema", options.inputs[0] if len(options.inputs) == 1 else None, lambda _: schema)
        case "chat":
            return TaskKind("chat", "prompt", lambda inputs: _caller_schema(inputs.get("json_schema")))
        case other:
            raise TaskFileError(f"the task {other!r} has an evaluation of its own")


def _caller_schema(given: Any) -> Any:
    text = read_answer_schema(given)
    return None if text is None else json.loads(text)
