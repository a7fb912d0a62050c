"""Files that are whole or not there.

Owns: writing beside the goal and renaming. Knows nothing of contents.

    with partial_file(path) as partial: partial.write_bytes(data)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; renamed to `path` at the end, removed on an error.

    The name holds the process id, so that two builds at once cannot write into one file.
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
    """Write a whole text file, UTF-8, line ends as given."""
    with partial_file(path) as partial:
        partial.write_bytes(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write JSON, indented, keys in the order given, with a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
