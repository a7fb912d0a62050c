"""Read and strictly check the header of a safetensors file, without reading tensor data.

The format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from serving.errors import WeightsError

MAX_HEADER_BYTES = 16 * 2**20  # the format allows 100 MB, which as JSON could take gigabytes; real ones have under 5
MAX_DIMENSIONS = 8
_BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16},
    **{"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64},
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its dtype as safetensors names it, its shape, and the range of its bytes after `data_start`."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The tensors of a file by name, its metadata, and the offset at which tensor data begins."""

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data_start: int


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """Read and check the header; its tensors must cover the rest of the file exactly, without gaps.

    Raises:
        WeightsError: the file cannot be read, or is damaged or malicious.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise _damaged(path, f"its header of {length:,} bytes does not fit in {size:,}")
            text = file.read(length)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from error
    entries = _parse(path, text)
    metadata = _metadata(path, entries.pop("__metadata__", {}))
    tensors = {name: _entry(path, name, entry) for name, entry in entries.items()}
    _check_coverage(path, tensors, size - 8 - length)
    return SafetensorsHeader(tensors, metadata, 8 + length)


def _damaged(path: Path, why: str) -> WeightsError:
    return WeightsError(f"{path}: not a valid safetensors file: {why}. Fetch or build it again.")


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key appears twice")
        return result

    try:
        entries = json.loads(text, object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"the header is not JSON ({error})") from error
    if not isinstance(entries, dict):
        raise _damaged(path, "the header is not an object")
    return entries


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _damaged(path, "__metadata__ is not an object of strings")
    return value


def _entry(path: Path, name: str, value: Any) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"the entry of {name!r} must have dtype, shape and data_offsets only")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _damaged(path, f"{name!r} has the unknown dtype {dtype!r}")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise _damaged(path, f"{name!r} has the shape {shape!r}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{name!r} has the offsets {offsets!r}")
    begin, end = offsets
    if (end - begin) * 8 != prod(shape) * _BITS[dtype]:
        raise _damaged(path, f"{name!r}, {dtype} {shape}, cannot take {end - begin:,} bytes")
    return TensorEntry(dtype, tuple(shape), begin, end)


def _are_counts(value: Any) -> bool:
    """Whether the value is a list of integers ≥ 0, not of booleans."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_coverage(path: Path, tensors: Mapping[str, TensorEntry], data_bytes: int) -> None:
    """Check that the tensors cover the data from 0 to its end without a gap or an overlap."""
    position = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            raise _damaged(path, f"{name!r} begins at byte {entry.begin:,} instead of {position:,}")
        position = entry.end
    if position != data_bytes:
        raise _damaged(path, f"its tensors take {position:,} bytes, but it has {data_bytes:,}")
