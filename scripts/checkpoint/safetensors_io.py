"""Reading and writing safetensors, one tensor in memory at a time, the same bytes everywhere.

Owns: the byte layout of what the scripts write, and reading a folder with one or many shards.
Knows nothing of what tensors mean. The safetensors library is not used for writing, so that a new
release of it cannot move a byte.

    write_safetensors(Path("model.safetensors"), checkpoint)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .atomic import partial_file
from .tensors import Array, Checkpoint, FingerprintHasher, Progress, TensorSpec, no_progress

_NAMES = {"float32": "F32", "float16": "F16", "int32": "I32", "uint8": "U8"}


def write_safetensors(path: Path, checkpoint: Checkpoint, progress: Progress = no_progress) -> str:
    """Write all tensors to one file, which appears under its name only when whole.

    Larger types come first and names are sorted within a type, so that data is aligned; tensors are
    computed in order of their names alone. Returns the fingerprint of what was written.
    """
    specs = checkpoint.specs()
    order = sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))
    offsets, end = {}, 0
    for name in order:
        offsets[name] = end
        end += specs[name].nbytes
    header = _header(order, specs, offsets)
    hasher = FingerprintHasher()
    with partial_file(path) as partial, partial.open("wb") as file:
        file.write(header)
        for name in sorted(specs):
            array = np.ascontiguousarray(checkpoint.load(name))
            if (array.dtype, array.shape) != (specs[name].dtype, specs[name].shape):
                raise AssertionError(f"{name}: loaded {array.dtype}{array.shape}, spec says {specs[name]}")
            file.seek(len(header) + offsets[name])
            file.write(array.data)
            hasher.update(name, array)
            progress(array.nbytes)
    return hasher.digest()


def _header(order: list[str], specs: dict[str, TensorSpec], offsets: dict[str, int]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name in order:
        spec, begin = specs[name], offsets[name]
        entries[name] = {
            "dtype": _NAMES[spec.dtype.name],
            "shape": list(spec.shape),
            "data_offsets": [begin, begin + spec.nbytes],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
