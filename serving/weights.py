"""The weights on disk are those of the lock, or nothing is loaded.

Owns: walking and hashing a folder, comparing it with weights.lock, and what no checkpoint may hold
(links, pickles, code). Knows nothing of models. Every file is hashed each time: times and sizes
prove nothing, and 115 MB take a tenth of a second.

    verified = verify(Path("weights/honeycomb-nlq"), Path("weights.lock")); verified.directory
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
from serving.safetensors_header import SafetensorsHeader, read_safetensors_header
from serving.weights_lock import LockedFile, LockedSource, LockedWeights, WeightsLock, set_digest

__all__ = [
    "LockedFile",
    "LockedSource",
    "LockedWeights",
    "SafetensorsHeader",
    "VerifiedWeights",
    "WeightsLock",
    "list_files",
    "lock_files",
    "read_safetensors_header",
    "set_digest",
    "verify",
]

MAX_CONFIG_BYTES = 4 * 2**20
_RUNS_CODE = frozenset(
    {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".h5", ".py", ".so"}
)
_REMEDY = "Run scripts/build_weights, or scripts/lock_weights if the change was meant."


@dataclass(frozen=True, slots=True)
class VerifiedWeights:
    """A folder whose every file is as locked."""

    directory: Path
    name: str
    set_digest: str
    files: tuple[LockedFile, ...]


def verify(weights_dir: Path, lock_path: Path) -> VerifiedWeights:
    """Compare every file with the lock, and refuse what could run code or exhaust memory.

    Raises:
        WeightsError: naming each missing, extra or altered file, and the remedy.
    """
    entry = WeightsLock.load(lock_path).entry_for(weights_dir.name)
    sizes = list_files(weights_dir)
    problems = [*_differences(weights_dir, sizes, entry.files)]
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise WeightsError(f"{weights_dir} does not match {lock_path}:\n{listed}\n{_REMEDY}")
    _check_contents(weights_dir, sizes)
    return VerifiedWeights(weights_dir, entry.name, entry.set_digest, entry.files)


def list_files(folder: Path) -> dict[str, int]:
    """Size of each file below `folder` by its relative path; `.cog` is Cog's own and skipped.

    Raises:
        WeightsError: no such folder, or it holds a link or a special file.
    """
    if not folder.is_dir():
        raise WeightsError(f"{folder}: no such folder of weights. Run scripts/build_weights.")
    return dict(sorted(_walk(folder, "")))


def lock_files(folder: Path) -> tuple[LockedFile, ...]:
    """Size and digest of each file below `folder`, by path, after the checks of `verify`."""
    sizes = list_files(folder)
    _check_contents(folder, sizes)
    digests = _hash_all(folder, sizes)
    return tuple(LockedFile(path=path, size=size, digest=digests[path]) for path, size in sizes.items())


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
                kind = "a symbolic link" if stat.S_ISLNK(mode.st_mode) else "no ordinary file"
                raise WeightsError(f"{entry.path} is {kind}; put a copy of the file there")


def _differences(folder: Path, sizes: dict[str, int], files: Iterable[LockedFile]) -> Iterator[str]:
    """A line for each file that is not as locked. Only files of the right size are hashed."""
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
    """Digest of each file; hashing leaves Python's lock, so files are done side by side."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        wanted = list(paths)
        return dict(zip(wanted, pool.map(lambda path: _hash(folder / path), wanted), strict=True))


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from error


def _check_contents(folder: Path, sizes: dict[str, int]) -> None:
    """No format that runs code when it is read, no code named in a config, sound tensors."""
    for path in sizes:
        if Path(path).suffix.lower() in _RUNS_CODE:
            raise WeightsError(f"{folder / path} could run code when it is read; only safetensors is loaded")
        if path.endswith("config.json"):
            _check_config(folder / path)
        elif path.endswith(".safetensors"):
            read_safetensors_header(folder / path)
    if not any(path.endswith(".safetensors") for path in sizes):
        raise WeightsError(f"{folder} has no .safetensors file. Run scripts/build_weights.")


def _check_config(path: Path) -> None:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise WeightsError(f"{path}: over {MAX_CONFIG_BYTES:,} bytes; this is no configuration")
    try:
        config: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path}: not a JSON object")
    if "auto_map" in config:
        raise WeightsError(
            f"{path}: auto_map names code to run; take it out, only built-in models are loaded"
        )
