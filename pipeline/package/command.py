"""The command lines of scripts/new_package and scripts/write_task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tokenizers
import typer

from pipeline.package.errors import PackageError
from pipeline.package.example_inputs import example_of
from pipeline.package.new_package import new_package
from pipeline.package.own_checkpoint import copy_with_task, open_checkpoint, write_task
from pipeline.package.task_choice import (
    ExamplesFile,
    ModelName,
    SchemaFile,
    System,
    TaskChoice,
    TaskFileOption,
    TaskName,
    TemplateFile,
)
from pipeline.weights.console import report_errors, say
from pipeline.weights.end_tokens import tell_end_tokens
from serving.text import Tokenizer
from tasks.errors import TaskError
from tasks.task import create_task, read_task_file


def package_command(
    folder: Annotated[Path, typer.Argument(help="folder to make; it must not exist yet, or be empty")],
    weights: Annotated[Path, typer.Option(help="the checkpoint's folder, in Hugging Face's layout; it is not changed")],
    task: TaskName = None,
    schema: SchemaFile = None,
    template: TemplateFile = None,
    system: System = None,
    examples: ExamplesFile = None,
    task_file: TaskFileOption = None,
    name: ModelName = None,
    force: Annotated[bool, typer.Option("--force", help="replace a package that is already in FOLDER")] = False,
) -> None:
    """Write cog.yaml, predict.py, its OpenAPI schema, task.json, weights.lock, a README and the code to run it."""
    choice = TaskChoice(task, task_file, schema, template, system, examples)
    with report_errors(PackageError, TaskError):
        print(new_package(folder, weights, choice, name=name, replace=force))


def task_command(
    checkpoint: Annotated[Path, typer.Argument(help="folder of the checkpoint", exists=True, file_okay=False)],
    into: Annotated[
        Path | None, typer.Option(help="a new folder for task.json and what is served of the checkpoint")
    ] = None,
    task: TaskName = None,
    schema: SchemaFile = None,
    template: TemplateFile = None,
    system: System = None,
    examples: ExamplesFile = None,
    task_file: TaskFileOption = None,
    name: ModelName = None,
) -> None:
    """Write task.json beside a checkpoint: what it was trained to do. Checks that the task works with it.

    With --into the checkpoint stays as it is. The new folder has its files for serving, tensors as hard links.
    """
    choice = TaskChoice(task, task_file, schema, template, system, examples)
    name = name or (into or checkpoint).resolve().name
    with report_errors(PackageError, TaskError):
        if into is None:
            write_task(checkpoint, choice, name=name)
            _tell_prompt(checkpoint)
        else:
            copy_with_task(open_checkpoint(checkpoint), into, choice, name=name)
        say(f"Wrote {(into or checkpoint) / 'task.json'}")


def _tell_prompt(checkpoint: Path) -> None:
    """Print what the model will read: the end tokens, and the prompt of an example as text and as token ids.

    Raises:
        TaskError: the task does not suit the checkpoint.
    """
    tokenizer = Tokenizer.from_dir(checkpoint)
    ids = create_task(checkpoint, tokenizer).prepare(dict(example_of(read_task_file(checkpoint)))).token_ids
    text = tokenizers.Tokenizer.from_str(tokenizer.to_json()).decode(list(ids), skip_special_tokens=False)
    tell_end_tokens(checkpoint)
    say(f"The prompt of an example:\n{text}\nIts token ids: {list(ids)}")
