"""Check that a folder of weights matches weights.lock, and that none of its files can run code.

Every file is hashed each time, because times and sizes prove nothing; 115 MB take a tenth of a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import WeightsError
from serving.weights.lock import LockedFile, WeightsLock, locked_file
from serving.weights.safetensors_header import read_safetensors_header

MAX_CONFIG_BYTES = 4 * 2**20
_RUNS_CODE = frozenset(
    {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".h5", ".py", ".so"}
    | {".pyc", ".pyd", ".dll", ".dylib", ".dill", ".sh"}
)
_REMEDY = "Run scripts/build_weights, or scripts/lock_weights if the change was meant."


@dataclass(frozen=True, slots=True)
class VerifiedWeights:
    """A folder whose files all match the lock."""

    directory: Path
    name: str
    set_digest: str
    files: tuple[LockedFile, ...]


def verify(weights_dir: Path, lock_path: Path) -> VerifiedWeights:
    """Compare every file with the lock, and refuse files that could run code or exhaust memory.

    Raises:
        WeightsError: a file is missing, extra, altered or refused; the message lists them all and gives the remedy.
    """
    entry = WeightsLock.load(lock_path).entry_for(weights_dir.name)
    sizes = list_files(weights_dir)
    problems = [*_differences(weights_dir, sizes, entry.files)]
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise WeightsError(f"{weights_dir} does not match {lock_path}:\n{listed}\n{_REMEDY}")
    check_contents(weights_dir, sizes)
    _check_tensors(weights_dir, sizes)
    return VerifiedWeights(weights_dir, entry.name, entry.set_digest, entry.files)


def list_files(folder: Path) -> dict[str, int]:
    """Size in bytes of each file below `folder` by its relative path; Cog's folder `.cog` is skipped.

    Raises:
        WeightsError: the folder does not exist, or has a link or a special file.
    """
    if not folder.is_dir():
        raise WeightsError(f"{folder}: this folder of weights does not exist. Run scripts/build_weights.")
    return dict(sorted(_walk(folder, "")))


def lock_files(folder: Path) -> tuple[LockedFile, ...]:
    """Size and digest of each file below `folder`, sorted by path.

    Raises:
        WeightsError: as `list_files`, or a file could run code or is damaged.
    """
    sizes = list_files(folder)
    check_contents(folder, sizes)
    _check_tensors(folder, sizes)
    return hash_files(folder)


def hash_files(folder: Path) -> tuple[LockedFile, ...]:
    """The same as `lock_files`, whatever the files are.

    Raises:
        WeightsError: as `list_files`, or a file has a name that a lock cannot have.
    """
    sizes = list_files(folder)
    digests = _hash_all(folder, sizes)
    return tuple(locked_file(path, size, digests[path]) for path, size in sizes.items())


def could_run_code(path: str) -> bool:
    """Whether a file of that name is of a format that can run code when it is read."""
    return Path(path).suffix.lower() in _RUNS_CODE


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            mode = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(mode.st_mode):
                if path != ".cog":
                    yield from _walk(Path(entry.path), f"{path}/")
            elif stat.S_ISREG(mode.st_mode):
                yield path, mode.st_size
            else:
                kind = "a symbolic link" if stat.S_ISLNK(mode.st_mode) else "not a regular file"
                raise WeightsError(f"{entry.path} is {kind}; replace it by a copy of the file")


def _differences(folder: Path, sizes: dict[str, int], files: Iterable[LockedFile]) -> Iterator[str]:
    """A line for each file that differs from the lock. Only files of the right size are hashed."""
    locked = {file.path: file for file in files}
    same_size = [path for path, size in sizes.items() if path in locked and size == locked[path].size]
    digests = _hash_all(folder, same_size)
    for path, file in locked.items():
        if path not in sizes:
            yield f"missing: {path} ({file.size:,} bytes)"
        elif sizes[path] != file.size:
            yield f"altered: {path} (expected {file.size:,} bytes, found {sizes[path]:,})"
        elif digests[path] != file.digest:
            yield f"altered: {path} (expected {file.digest[:19]}…, found {digests[path][:19]}…)"
    for path in sorted(sizes.keys() - locked.keys()):
        yield f"extra: {path} ({sizes[path]:,} bytes)"


def _hash_all(folder: Path, paths: Iterable[str]) -> dict[str, str]:
    """Digest of each file, in several threads: hashing releases the GIL."""
    paths = list(paths)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(paths, pool.map(lambda path: _hash(folder / path), paths), strict=True))


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from error


def check_contents(folder: Path, paths: Iterable[str]) -> None:
    """Refuse formats that run code when they are read, configs that name code, and invalid tensors.

    Raises:
        WeightsError: the first file that is refused.
    """
    for path in paths:
        if could_run_code(path):
            raise WeightsError(f"{folder / path} could run code when it is read; use safetensors instead")
        if path.endswith("config.json"):
            _check_config(folder / path)
        elif path.endswith(".safetensors"):
            read_safetensors_header(folder / path)


def _check_tensors(folder: Path, paths: Iterable[str]) -> None:
    if not any(path.endswith(".safetensors") for path in paths):
        raise WeightsError(f"{folder} has no .safetensors file. Run scripts/build_weights.")


def _check_config(path: Path) -> None:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise WeightsError(f"{path}: over {MAX_CONFIG_BYTES:,} bytes; this is not a configuration")
    try:
        config: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path}: not a JSON object")
    if "auto_map" in config:
        raise WeightsError(f"{path}: auto_map names code to run; remove it, only built-in models are loaded")
