"""Copies a checkpoint from a local folder or the hub's cache; links are resolved and must not lead outside of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pipeline.fetching.wanted import check_space, needed_files
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError


def copy_folder(source: Path, folder: Path) -> list[str]:
    """Copy the needed files of `source` into `folder`, as hard links where the file system allows them.

    Raises:
        CheckpointError: `source` has no checkpoint, a link leads out of it (or out of its repository in the hub's
            cache), or the disk is too small.
    """
    root = _root(source)
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    real = {name: _resolved(source / name, root) for name in needed_files(names)}
    check_space(folder, {name: path.stat().st_size for name, path in real.items()})
    for name, path in real.items():
        target = folder / name
        if target.is_file() and _same(path, target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        say(f"Copying {name} ({path.stat().st_size:,} bytes)")
        partial = target.with_name(target.name + ".partial")
        partial.unlink(missing_ok=True)
        try:
            os.link(path, partial)
        except OSError:  # another file system
            shutil.copyfile(path, partial)
        partial.replace(target)
    return list(real)


def _root(source: Path) -> Path:
    """The folder that links may lead into: `source`, or its repository in the hub's cache (models--ORG--NAME)."""
    real = source.resolve()
    for parent in (real, *real.parents):
        if parent.name.startswith("models--"):
            return parent
    return real


def _resolved(path: Path, root: Path) -> Path:
    real = path.resolve(strict=True)
    if not real.is_relative_to(root):
        raise CheckpointError(f"{path} is a link to {real}, outside of {root}; copy the file there yourself")
    return real


def _same(path: Path, target: Path) -> bool:
    first, second = path.stat(), target.stat()
    return os.path.samestat(first, second) or (
        first.st_size == second.st_size and first.st_mtime_ns <= second.st_mtime_ns
    )
