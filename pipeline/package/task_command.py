"""The command line of scripts/write_task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tokenizers
import typer

from pipeline.package.errors import PackageError
from pipeline.package.example_inputs import example_of
from pipeline.package.own_checkpoint import open_checkpoint
from pipeline.package.task_arguments import (
    ExamplesFile,
    ModelName,
    SchemaFile,
    System,
    TaskFile,
    TaskName,
    TemplateFile,
)
from pipeline.package.task_choice import TaskChoice
from pipeline.package.task_file import copy_with_task, write_task
from pipeline.weights.console import report_errors, say
from pipeline.weights.end_tokens import tell_end_tokens
from serving.text import Tokenizer
from tasks.errors import TaskError
from tasks.task import create_task, read_task_file


def main(
    checkpoint: Annotated[Path, typer.Argument(help="folder of the checkpoint", exists=True, file_okay=False)],
    into: Annotated[
        Path | None, typer.Option(help="a new folder for task.json and what is served of the checkpoint")
    ] = None,
    task: TaskName = None,
    schema: SchemaFile = None,
    template: TemplateFile = None,
    system: System = None,
    examples: ExamplesFile = None,
    task_file: TaskFile = None,
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
