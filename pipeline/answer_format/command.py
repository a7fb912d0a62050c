"""The command line of scripts/derive_format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pipeline.answer_format.derive import AnswerFormat, derive_format
from pipeline.answer_format.errors import ExamplesError
from pipeline.answer_format.example_answers import read_answers
from pipeline.weights.atomic import write_json
from tasks.errors import TaskError
from tasks.schema.options import SchemaOptions
from tasks.task import TASK_FILE

app = typer.Typer(add_completion=False)
console = Console(stderr=True)
_MAX_REPORTED = 10  # refused examples that are printed


@app.command()
def derive(
    folder: Annotated[Path, typer.Argument(help="folder with task.json")],
    examples: Annotated[Path, typer.Argument(help="JSONL of answers, {input, output} or {messages}")],
    write: Annotated[bool, typer.Option("--write", help="update task.json and the schema's file")] = False,
) -> None:
    """Find the separators and property order that a model was trained on; print the new task file or write it."""
    try:
        options = SchemaOptions.load(folder)
        found = derive_format(options.read_schema(folder), read_answers(examples))
    except (ExamplesError, TaskError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    _report(found)
    if write:
        _write(folder, options, found)
    else:
        print(json.dumps(_content(folder, found), ensure_ascii=False, indent=2))
    if found.refused:
        raise typer.Exit(2)


def _report(found: AnswerFormat) -> None:
    for note in found.notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    for line in found.refused[:_MAX_REPORTED]:
        console.print(line, style="red", markup=False, soft_wrap=True)
    if found.refused:
        console.print(f"{len(found.refused)} examples are answers that the constraint does not allow", style="red")


def _content(folder: Path, found: AnswerFormat) -> dict[str, Any]:
    content = json.loads((folder / TASK_FILE).read_text(encoding="utf-8"))
    if "schema" in content:
        content["schema"] = found.schema
    return {**content, "item_separator": found.item_separator, "key_separator": found.key_separator}


def _write(folder: Path, options: SchemaOptions, found: AnswerFormat) -> None:
    files = {TASK_FILE: _content(folder, found)}
    if options.schema_file is not None:
        files[options.schema_file] = found.schema
    for name, content in files.items():
        write_json(folder / name, content)
        console.print(f"wrote {folder / name}", markup=False)
