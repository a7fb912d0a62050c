"""The command line of scripts/new_package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.package.errors import PackageError
from pipeline.package.new_package import new_package
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
from pipeline.weights.console import report_errors
from tasks.errors import TaskError


def main(
    folder: Annotated[Path, typer.Argument(help="folder to make; it must not exist yet, or be empty")],
    weights: Annotated[Path, typer.Option(help="the checkpoint's folder, in Hugging Face's layout; it is not changed")],
    task: TaskName = None,
    schema: SchemaFile = None,
    template: TemplateFile = None,
    system: System = None,
    examples: ExamplesFile = None,
    task_file: TaskFile = None,
    name: ModelName = None,
    force: Annotated[bool, typer.Option("--force", help="replace a package that is already in FOLDER")] = False,
) -> None:
    """Write cog.yaml, predict.py, its OpenAPI schema, task.json, weights.lock, a README and the code to run it."""
    choice = TaskChoice(task, task_file, schema, template, system, examples)
    with report_errors(PackageError, TaskError):
        print(new_package(folder, weights, choice, name=name, replace=force))
