"""Makes the content of a new package's task.json from the user's options, which several commands take."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pipeline.answer_format.derive import derive_format
from pipeline.answer_format.errors import ExamplesError
from pipeline.answer_format.example_answers import read_answers
from pipeline.package.errors import PackageError
from pipeline.weights.console import say
from tasks.chat.options import Defaults
from tasks.errors import TaskFileError
from tasks.task import TASK_FILE, TASKS, task_module

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
TaskFileOption = Annotated[Path | None, typer.Option(help="a task.json with the task's options", **_FILE)]
ModelName = Annotated[str | None, typer.Option(help="the model's name; default: the folder's")]
_OPTIONS_OF: Final = {
    "schema": ("schema", "template", "system", "examples"),
    "chat": ("system",),
}
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # of generation_config.json
_MAX_REPORTED: Final = 5  # refused examples that are printed


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The task options that the user gave.

    Args:
        task: its name; None takes the name from the task file.
        task_file: a task.json with the task's options; None takes the checkpoint's, if it is for the same task.
        schema: file of a JSON Schema.
        template: file of the prompt, with `{text}` where the input goes; None uses the checkpoint's chat template.
        system: system message that the model was trained with.
        examples: JSONL of answers, from which property order and separators are derived.
    """

    task: str | None = None
    task_file: Path | None = None
    schema: Path | None = None
    template: Path | None = None
    system: str | None = None
    examples: Path | None = None


def task_content(checkpoint: Path, name: str, choice: TaskChoice) -> dict[str, Any]:
    """`task`, `name` and the task's own options, which the task itself checks later.

    Raises:
        PackageError: no task was chosen, the task is unknown, the task file is for another task, an option belongs
            to another task, or a file cannot be read.
    """
    content = _from_file(checkpoint, choice)
    task = choice.task or content.get("task")
    if task is None:
        raise PackageError(f"no task was chosen: give --task with one of {', '.join(TASKS)}, or a module of your own")
    _refuse_options_of_other_tasks(str(task), choice)
    content = {"task": task, **content, "name": name}
    match task:
        case "schema":
            return _with_schema(checkpoint, content, choice)
        case "chat":
            return {**content, "defaults": _chat_defaults(checkpoint, content, choice)}
    return content


def _from_file(checkpoint: Path, choice: TaskChoice) -> dict[str, Any]:
    """Options from --task-file or from the checkpoint's task.json; empty if that file is for another task."""
    task, task_file = choice.task, choice.task_file
    if task is not None:
        try:
            task_module(task)
        except TaskFileError as error:
            raise PackageError(f"--task: {error}") from error
    own = checkpoint / TASK_FILE
    source = task_file or (own if own.is_file() else None)
    content = _read_options(source) if source else {}
    if task is None or content.get("task", task) == task:
        return content
    if task_file is not None:
        raise PackageError(f"{task_file} is for the task {content['task']!r} and --task is {task!r}; give one of them")
    return {}  # the checkpoint's own file is for another task


def _refuse_options_of_other_tasks(task: str, choice: TaskChoice) -> None:
    options = [f.name for f in fields(choice) if f.name not in ("task", "task_file")]
    for option in options:
        if getattr(choice, option) is not None and option not in _OPTIONS_OF.get(task, ()):
            tasks = " and ".join(name for name, known in _OPTIONS_OF.items() if option in known)
            raise PackageError(f"--{option} is for the task {tasks}, and this is {task}; leave it out")


def _chat_defaults(checkpoint: Path, content: dict[str, Any], choice: TaskChoice) -> dict[str, Any]:
    """All numeric defaults, so that users see what they may change; sampling values come from the checkpoint."""
    ours = {name: value for name, value in Defaults().model_dump().items() if isinstance(value, int | float)}
    generation = checkpoint / "generation_config.json"
    theirs = _read_json(generation) if generation.is_file() else {}
    if isinstance(theirs, dict) and theirs.get("do_sample") is True:
        ours |= {name: theirs[name] for name in _SAMPLING if theirs.get(name) is not None}
    system = {} if choice.system is None else {"system_prompt": choice.system}
    return {**ours, **content.get("defaults", {}), **system}


def _with_schema(checkpoint: Path, content: dict[str, Any], choice: TaskChoice) -> dict[str, Any]:
    if choice.template is not None and choice.system is not None:
        raise PackageError("--template is a whole prompt, --system one message of a conversation; give one of them")
    if choice.schema is not None:
        content = {**content, "schema": _read_json(choice.schema)}
    if "schema" not in content:
        needed = "the task schema needs a JSON Schema: give --schema with its file"
        raise PackageError(f"{needed}{_other_task(checkpoint)}")
    if choice.template is not None:
        content = {**_without(content, "chat"), "template": _read_text(choice.template)}
    elif choice.system is not None:
        content = {**_without(content, "template"), "chat": {**content.get("chat", {}), "system": choice.system}}
    elif not {"template", "chat"} & content.keys():
        content["chat"] = {}
    return content if choice.examples is None else _with_format(content, choice.examples)


def _other_task(checkpoint: Path) -> str:
    """What to say of a checkpoint that has no schema because its task.json is for another task."""
    own = checkpoint / TASK_FILE
    task = _read_options(own).get("task") if own.is_file() else None
    if task in (None, "schema"):
        return ""
    return f". {checkpoint} has a model for the task {task}; scripts/new_package --weights takes another folder"


def _with_format(content: dict[str, Any], examples: Path) -> dict[str, Any]:
    """The content with separators and property order derived from the examples."""
    try:
        found = derive_format(content["schema"], read_answers(examples))
    except ExamplesError as error:
        raise PackageError(str(error)) from error
    for note in (*found.notes, *found.refused[:_MAX_REPORTED]):
        say(note)
    if found.refused:
        say(f"{len(found.refused)} examples are answers that the constraint does not allow")
    separators = {"item_separator": found.item_separator, "key_separator": found.key_separator}
    return {**content, "schema": found.schema, **separators}


def _without(content: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != name}


def _read_options(path: Path) -> dict[str, Any]:
    """The content of a task file; a schema that it names as a file is read and put in."""
    content = _read_json(path)
    if not isinstance(content, dict):
        raise PackageError(f"{path} holds a {type(content).__name__}, not an object")
    if isinstance(file := content.get("schema_file"), str):
        content = {**_without(content, "schema_file"), "schema": _read_json(path.parent / Path(file).name)}
    return content


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except ValueError as error:
        raise PackageError(f"{path} is not JSON: {error}") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(f"{path} cannot be read as text: {error}") from error
