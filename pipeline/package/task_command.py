"""The command line of scripts/write_task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.package.errors import PackageError
from pipeline.package.own_checkpoint import open_checkpoint
from pipeline.package.prompt_report import tell_prompt
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
from tasks.errors import TaskError


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
            tell_prompt(checkpoint)
        else:
            copy_with_task(open_checkpoint(checkpoint), into, choice, name=name)
        say(f"Wrote {(into or checkpoint) / 'task.json'}")
