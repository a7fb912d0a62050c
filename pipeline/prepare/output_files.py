"""Which files a step left, and whether they are still the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.prepare.road_record import FileRecord
from pipeline.weights.digest import sha256 as file_sha256

__all__ = ["are_whole", "file_sha256", "remove", "written_files"]


def written_files(paths: Iterable[Path], root: Path) -> dict[str, FileRecord]:
    """Size and digest of each file, and of each file in each folder, by its path below `root`."""
    return {
        str(file.relative_to(root)): FileRecord(size=file.stat().st_size, sha256=file_sha256(file))
        for path in paths
        for file in _files(path)
    }


def are_whole(files: dict[str, FileRecord], root: Path) -> bool:
    """Whether all files are there with their size and digest."""
    paths = {name: root / name for name in files}
    if not all(path.is_file() and path.stat().st_size == files[name].size for name, path in paths.items()):
        return False
    return all(file_sha256(path) == files[name].sha256 for name, path in paths.items())


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _files(path: Path) -> Iterator[Path]:
    """Itself, or all in it that a program did not put aside (.cache, .partial)."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
            yield file
