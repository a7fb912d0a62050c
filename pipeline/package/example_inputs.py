"""Example inputs for each task, and the example commands that READMEs and commands print."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from serving.config import Settings
from serving.errors import ServingError
from serving.text.tokenizer import read_json
from tasks.errors import TaskError
from tasks.task import TASK_FILE, task_name

EXAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "chat": {"prompt": "What is the capital of France?", "temperature": 0},
    "schema": {"text": "We met Ada Lovelace, 36, in London on 3 May."},
    "honeycomb": {"nlq": "slowest traces", "cols": '["name", "duration_ms"]'},
}


def example_inputs() -> Mapping[str, Any] | None:
    """Example inputs for the task of the configured weights; None if it cannot be read (the server reports why)."""
    try:
        return example_of(*task_and_inputs(Settings().weights_dir))
    except (TaskError, ServingError, ValueError):
        return None


def task_and_inputs(weights: Path) -> tuple[str, tuple[str, ...]]:
    """The task of a checkpoint, and the names of a schema task's text inputs.

    Raises:
        TaskFileError: task.json is missing or names no task.
    """
    task = task_name(weights)
    inputs = read_json(weights / TASK_FILE).get("inputs", ["text"]) if task == "schema" else ()
    return task, tuple(inputs)


def example_of(task: str, inputs: Sequence[str] = ()) -> Mapping[str, Any]:
    """Example inputs for a task.

    Args:
        task: its name.
        inputs: names of a schema task's text inputs.
    """
    example = EXAMPLES[task]
    return dict.fromkeys(inputs, example["text"]) if task == "schema" else example


def predict_command(inputs: Mapping[str, Any]) -> str:
    """The command line that asks a package with these inputs."""
    words = [f"-i {name}={shlex.quote(_as_text(value))}" for name, value in inputs.items()]
    return " ".join(["./package.py predict", *words])


def curl_command(url: str, inputs: Mapping[str, Any], *, indent: str = "  ") -> str:
    """A curl command, on two lines, that sends these inputs to Cog's server."""
    body = shlex.quote(json.dumps({"input": inputs}, ensure_ascii=False))
    return f"{indent}curl -s {url}/predictions -H 'Content-Type: application/json' \\\n{indent}  -d {body}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
