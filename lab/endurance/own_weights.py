"""Folders of weights for one run, with a lock of their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from serving.weights import LockedSource, LockedWeights, WeightsLock, lock_files, set_digest


def lock_text(weights: Path) -> str:
    """weights.lock for the files that are in a folder now."""
    files = lock_files(weights)
    entry = LockedWeights(
        name=weights.name,
        target=f"/src/weights/{weights.name}",
        sources=(LockedSource(uri=f"file://{weights}", fingerprint=set_digest(files)),),
        imported_at="2026-01-01T00:00:00Z",
        set_digest=set_digest(files),
        size=sum(file.size for file in files),
        files=files,
    )
    return WeightsLock(version=1, envelope_format="", weights=(entry,)).text()


def copied_weights(source: Path, folder: Path) -> dict[str, str]:
    """A copy of weights, which a row may damage, and its lock; the settings for them.

    Args:
        source: the weights.
        folder: for the copy and the lock; made if need be.
    """
    copy = folder / source.name
    shutil.copytree(source, copy)
    lock = folder / "weights.lock"
    lock.write_text(lock_text(copy), "utf-8")
    return settings(copy, lock)


def linked_weights(source: Path, folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The same weights under another task, without copying them; the settings for them.

    Args:
        source: the weights.
        folder: for the hard links and the lock; made if need be. On another file system the files are copied.
        files: texts of files that are added or replaced.
    """
    other = folder / source.name
    other.mkdir(parents=True)
    for path in source.iterdir():
        if path.name not in files:
            try:
                os.link(path, other / path.name)
            except OSError:
                shutil.copy(path, other / path.name)
    for name, text in files.items():
        (other / name).write_text(text, "utf-8")
    lock = folder / "weights.lock"
    lock.write_text(lock_text(other), "utf-8")
    return settings(other, lock)


def settings(weights: Path, lock: Path) -> dict[str, str]:
    """Environment variables of a server with these weights."""
    return {"WEIGHTS_DIR": str(weights), "WEIGHTS_LOCK": str(lock)}
