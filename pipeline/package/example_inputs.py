"""Example inputs for the task of a package, and the example commands that READMEs and commands print."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from serving.config import Settings
from serving.errors import ServingError
from tasks.errors import TaskError
from tasks.task import read_task_file, task_module


def example_inputs() -> Mapping[str, Any] | None:
    """Example inputs for the task of the configured weights; None if it cannot be read (the server reports why)."""
    try:
        return example_of(read_task_file(Settings().weights_dir))
    except (TaskError, ServingError, ValueError):
        return None


def example_of(task_file: Mapping[str, Any]) -> Mapping[str, Any]:
    """Example inputs for a task."""
    return task_module(task_file["task"]).example_inputs(task_file)


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
