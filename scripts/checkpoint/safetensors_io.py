"""Reading and writing safetensors, one tensor in memory at a time, the same bytes everywhere.

Owns: the byte layout of what the scripts write, and reading a folder with one or many shards.
Knows nothing of what tensors mean. The safetensors library is not used for writing, so that a new
release of it cannot move a byte.

    write_safetensors(Path("out/model.safetensors"), SafetensorsCheckpoint(Path("in")))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving.weights import SafetensorsHeader, read_safetensors_header

from .atomic import partial_file
from .errors import CheckpointError
from .tensors import Array, Checkpoint, Progress, TensorSpec, no_progress


def write_safetensors(
    path: Path,
    checkpoint: Checkpoint,
    metadata: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> None:
    """Write all tensors to one file, which appears under its name only when whole.

    Larger types come first and names are sorted within a type, so that data is aligned; tensors are
    computed in the order of their names alone.
    """
    specs = checkpoint.specs()
    order = sorted(specs, key=lambda name: (-specs[name].itemsize, name))
    offsets, end = {}, 0
    for name in order:
        offsets[name] = end
        end += specs[name].nbytes
    header = _header(order, specs, offsets, {"format": "pt", **(metadata or {})})
    with partial_file(path) as partial, partial.open("wb") as file:
        file.write(header)
        for name in sorted(specs):
            data = specs[name].encode(checkpoint.load(name))
            file.seek(len(header) + offsets[name])
            file.write(data)
            progress(specs[name].nbytes)


def _header(
    order: list[str], specs: dict[str, TensorSpec], offsets: dict[str, int], metadata: Mapping[str, str]
) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    for name in order:
        spec, begin = specs[name], offsets[name]
        entries[name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [begin, begin + spec.nbytes],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class SafetensorsFile:
    """The tensors of one file, read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header: SafetensorsHeader = read_safetensors_header(path)
        self._specs = {
            name: TensorSpec(entry.dtype, entry.shape) for name, entry in self._header.tensors.items()
        }

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings that the file carries."""
        return self._header.metadata

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by name."""
        return self._specs

    def load(self, name: str) -> Array:
        """Read one tensor."""
        spec = self._specs[name]
        with self._path.open("rb") as file:
            file.seek(self._header.data_start + self._header.tensors[name].begin)
            return spec.decode(file.read(spec.nbytes))


class SafetensorsCheckpoint:
    """All tensors of a Hugging Face folder, from one file or from shards."""

    def __init__(self, folder: Path) -> None:
        self.shards = {path.name: SafetensorsFile(path) for path in shard_paths(folder)}
        self._shard_of = {name: shard for shard in self.shards.values() for name in shard.specs()}

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by name."""
        return {name: shard.specs()[name] for name, shard in self._shard_of.items()}

    def load(self, name: str) -> Array:
        """Read one tensor."""
        return self._shard_of[name].load(name)


def shard_paths(folder: Path) -> list[Path]:
    """The weight files of a folder, as the index says or else the one file there is."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        if any("/" in name or name.startswith(".") for name in names):
            raise CheckpointError(f"{index} names files outside its folder; it is damaged or hostile")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if not single.exists():
        raise CheckpointError(
            f"{folder} has no model.safetensors; give a folder of a Hugging Face checkpoint"
        )
    return [single]
