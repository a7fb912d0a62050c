"""Write files atomically: a file is either complete or does not exist.

with partial_file(path) as partial: partial.write_bytes(data)
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to `path` at the end, or removed after an error.

    Its name has the process id, so that two processes never write to the same file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 without changing line ends."""
    with partial_file(path) as partial:
        partial.write_bytes(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with keys in the given order and a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def place_file(source: Path, path: Path) -> bool:
    """Put a file at `path` too: as a hard link, or as a copy where the file system has none; whether it is a link."""
    with partial_file(path) as partial:
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)
            return False
        return True


def replace_folder(staging: Path, output: Path) -> None:
    """Rename a finished folder to `output`, replacing a folder that is there."""
    for partial in staging.glob("*.partial"):  # left by a build that was killed
        partial.unlink()
    old = output.with_name(f".{output.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    staging.rename(output)
    shutil.rmtree(old, ignore_errors=True)
