"""The folder in which a merge works, and what it has finished there, so that an interrupted merge continues."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.weights.atomic import replace_folder, write_json
from pipeline.weights.errors import CheckpointError

from .differences import Sums
from .merge_plan import PlannedTensor
from .tensor_writer import read_blocks

_STATE, _LOCK = "merge-state.json", "merge.lock"


class MergeState:
    """The finished shards of a merge, with digests of all that they were made from.

    Args:
        folder: where the merge works.
        settings: digest of all that decides the result, apart from the base's tensors.
    """

    def __init__(self, folder: Path, settings: str) -> None:
        self._path = folder / _STATE
        self._settings = settings
        self._shards: dict[str, dict[str, Any]] = self._read()

    def finished(self, file: str, tensors: dict[str, PlannedTensor]) -> dict[str, Sums] | None:
        """The differences of a finished shard; None if it has to be written, for instance as its sources changed."""
        entry, path = self._shards.get(file), self._path.with_name(file)
        if entry is None or not path.exists() or path.stat().st_size != entry["bytes"]:
            return None
        if source_digest(tensors) != entry["sources"]:
            return None
        return {name: Sums(**sums) for name, sums in entry["differences"].items()}

    def finish(self, file: str, sources: str, differences: dict[str, Sums]) -> None:
        """Record a finished shard."""
        size = self._path.with_name(file).stat().st_size
        parts = {name: asdict(sums) for name, sums in differences.items()}
        self._shards[file] = {"bytes": size, "sources": sources, "differences": parts}
        write_json(self._path, {"version": 1, "settings": self._settings, "shards": self._shards})

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            state = json.loads(self._path.read_text("utf-8"))
            return dict(state["shards"]) if state["settings"] == self._settings else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # none, or not of this version: begin again


@contextmanager
def working_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output` that becomes it at the end; after an error it stays, to continue there.

    Raises:
        CheckpointError: `output` is something else than a checkpoint, or another merge is writing it.
    """
    if output.exists() and not (output.is_dir() and (not any(output.iterdir()) or (output / "config.json").exists())):
        raise CheckpointError(f"{output} exists and is not a checkpoint; give a new folder")
    working = output.with_name(f".{output.name}.partial")
    working.mkdir(parents=True, exist_ok=True)
    with (working / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(f"another merge is writing {output}; wait for it, or give another folder") from error
        yield working
        (working / _STATE).unlink(missing_ok=True)
        (working / _LOCK).unlink()
        replace_folder(working, output)


def keep_only(folder: Path, shards: set[str]) -> None:
    """Remove all but the shards and the state from a working folder: the rest is of an earlier merge."""
    for path in folder.iterdir():
        if path.name not in {*shards, _STATE, _LOCK}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def source_digest(tensors: dict[str, PlannedTensor]) -> str:
    """A digest of all that a shard is made from, as `TensorWriter.write` gives it."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        for data, _ in read_blocks(tensors[name]):
            digest.update(data)
    return digest.hexdigest()
