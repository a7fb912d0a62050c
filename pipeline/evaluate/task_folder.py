"""Gives a checkpoint another task file than its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tasks.task import TASK_FILE


@contextlib.contextmanager
def task_folder(weights: Path, task: Path | None) -> Iterator[Path]:
    """A folder with the files of a checkpoint and, if given, another task file and the files beside it.

    Of two files of one name, the checkpoint's is there, except for those that the task file names, such as its schema.
    """
    if task is None:
        yield weights
        return
    with tempfile.TemporaryDirectory() as name:
        beside = {path.name: path for path in task.parent.iterdir() if path.suffix in (".json", ".jinja")}
        checkpoint = {path.name: path for path in weights.iterdir()}
        text = task.read_bytes() if task.is_file() else b""
        named = {file: path for file, path in beside.items() if f'"{file}"'.encode() in text}
        for file, path in {**beside, **checkpoint, **named, TASK_FILE: task}.items():
            Path(name, file).symlink_to(path.resolve())
        yield Path(name)
