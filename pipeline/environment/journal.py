"""Changes several files of the repository in one step that a kill cannot leave half done.

The new contents are first written to a journal. Renaming it into place is the step; from then on every command of the
package completes it before doing anything else. Standard library only, because that happens before there is an
environment.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

FOLDER: Final = "models"
_JOURNAL: Final = Path(FOLDER) / ".switch.json"
_LAST: Final = "cog.yaml"  # absent until all else is there, so that Cog never sees half of a change


def change_files(root: Path, changes: Mapping[str, str | None]) -> None:
    """Write and delete files together.

    Args:
        root: the repository's folder; it has a folder `models`.
        changes: new text by path relative to `root`; None deletes the file.
    """
    finish_change(root)
    journal = root / _JOURNAL
    _write(journal, json.dumps(changes))
    folder = os.open(journal.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    finish_change(root)


def finish_change(root: Path) -> None:
    """Complete a change that was interrupted, if there is one; one process at a time."""
    journal = root / _JOURNAL
    if not journal.exists():
        return
    folder = os.open(journal.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if journal.exists():
            _apply(root, json.loads(journal.read_text("utf-8")))
            journal.unlink()
    finally:
        os.close(folder)


def _apply(root: Path, changes: dict[str, str | None]) -> None:
    if _LAST in changes:
        (root / _LAST).unlink(missing_ok=True)
    for name, text in sorted(changes.items(), key=lambda change: change[0] == _LAST):
        path = root / name
        if text is not None:
            _write(path, text)
            continue
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
