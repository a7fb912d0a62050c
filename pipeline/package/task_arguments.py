"""The options that say what a checkpoint was trained to do, once for all commands that take them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tasks.task import TASKS

_FILE: Final[dict[str, Any]] = {"exists": True, "dir_okay": False}

_TASKS: Final = f"{', '.join(TASKS)}, or a module of your own; default: see its task.json"
TaskName = Annotated[str | None, typer.Option("--task", help=_TASKS)]
SchemaFile = Annotated[Path | None, typer.Option(help="schema: file with the answers' JSON Schema", **_FILE)]
TemplateFile = Annotated[
    Path | None,
    typer.Option(help="schema: file of the prompt, with {text} in it; default: the chat template", **_FILE),
]
System = Annotated[str | None, typer.Option(help="chat, schema: the system message used in training")]
ExamplesFile = Annotated[
    Path | None, typer.Option(help="schema: JSONL of answers; shows separators and property order", **_FILE)
]
TaskFile = Annotated[Path | None, typer.Option(help="a task.json with the task's options", **_FILE)]
ModelName = Annotated[str | None, typer.Option(help="the model's name; default: the folder's")]
