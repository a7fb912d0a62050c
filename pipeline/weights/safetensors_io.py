"""Reads and writes safetensors with one tensor in memory at a time, and the same bytes everywhere.

The safetensors library is not used for writing, so that a new release of it cannot change a byte.

    write_safetensors(Path("out/model.safetensors"), SafetensorsCheckpoint(Path("in")))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.weights.atomic import partial_file
from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import Array, CheckpointTensors, Progress, TensorSpec, no_progress
from serving.weights.safetensors_header import SafetensorsHeader, read_safetensors_header


def write_safetensors(
    path: Path,
    checkpoint: CheckpointTensors,
    metadata: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> None:
    """Write all tensors to one file, atomically.

    In the file, larger dtypes come first, so that data is aligned, and names are sorted within a dtype. Tensors are
    loaded in the order of their names.
    """
    specs = checkpoint.specs()
    header, offsets = layout(specs, metadata)
    with partial_file(path) as partial, partial.open("wb") as file:
        file.write(header)
        for name in sorted(specs):
            data = specs[name].encode(checkpoint.load(name))
            file.seek(offsets[name])
            file.write(data)
            progress(specs[name].nbytes)


def layout(specs: dict[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> tuple[bytes, dict[str, int]]:
    """The first bytes of a file with these tensors, and where in the file each tensor's data begins."""
    order = sorted(specs, key=lambda name: (-specs[name].itemsize, name))
    offsets, end = {}, 0
    for name in order:
        offsets[name] = end
        end += specs[name].nbytes
    header = _header(order, specs, offsets, {"format": "pt", **(metadata or {})})
    return header, {name: len(header) + offset for name, offset in offsets.items()}


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
    """The tensors of one file, read when they are loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header: SafetensorsHeader = read_safetensors_header(path)
        self._specs = {name: TensorSpec(entry.dtype, entry.shape) for name, entry in self._header.tensors.items()}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata strings of the file."""
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

    def load_rows(self, name: str, rows: Sequence[int]) -> Array:
        """Read some rows of a matrix, in the order given."""
        spec = self._specs[name]
        part = TensorSpec(spec.dtype, (1, *spec.shape[1:]))
        start = self._header.data_start + self._header.tensors[name].begin
        found = np.empty((len(rows), *spec.shape[1:]), part.decode(bytes(part.nbytes)).dtype)
        with self._path.open("rb") as file:
            for index, row in enumerate(rows):
                file.seek(start + row * part.nbytes)
                found[index] = part.decode(file.read(part.nbytes))[0]
        return found

    def read(self, name: str, begin: int, end: int) -> bytes:
        """The bytes `begin` to `end` of a tensor's data."""
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._header.data_start + self._header.tensors[name].begin + begin)
            return file.read(end - begin)


class SafetensorsCheckpoint:
    """All tensors of a Hugging Face folder, in one file or in shards."""

    def __init__(self, folder: Path) -> None:
        self.shards = {path.name: SafetensorsFile(path) for path in shard_paths(folder)}
        self._shard_of = {name: shard for shard in self.shards.values() for name in shard.specs()}

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by name."""
        return {name: shard.specs()[name] for name, shard in self._shard_of.items()}

    def load(self, name: str) -> Array:
        """Read one tensor."""
        return self._shard_of[name].load(name)

    def load_rows(self, name: str, rows: Sequence[int]) -> Array:
        """Read some rows of a matrix, in the order given."""
        return self._shard_of[name].load_rows(name, rows)


def shard_paths(
    folder: Path, single: str = "model.safetensors", index: str = "model.safetensors.index.json"
) -> list[Path]:
    """The files of a folder's checkpoint: those in the index, or the single one.

    Raises:
        CheckpointError: there is none, or the index is damaged or names a file outside the folder.
    """
    if (folder / index).exists():
        return [folder / name for name in shard_names(folder / index)]
    if not (folder / single).exists():
        raise CheckpointError(f"{folder} has no {single}; give a folder of a Hugging Face checkpoint")
    return [folder / single]


def shard_names(index: Path) -> list[str]:
    """The files that an index names, sorted. Each is in the index's folder and has the index's kind.

    Raises:
        CheckpointError: the index is damaged, or names anything else.
    """
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged ({error!r}); fetch it again") from error
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    for name in names:
        if not _is_plain(name, suffix):
            raise CheckpointError(
                f"{index} names {name!r}, which is not a {suffix} file in its folder; it is damaged or malicious"
            )
    return sorted(names)


def _is_plain(name: object, suffix: str) -> bool:
    """Whether it is a file name that leads nowhere else, on any system and in a URL."""
    return (
        isinstance(name, str)
        and name.endswith(suffix)
        and not name.startswith(".")
        and name.isprintable()
        and not set(name) & set("/\\:?#%")
    )
