"""The interface of checkpoints: named tensors that are loaded one at a time.

for name, spec in checkpoint.specs().items(): array = checkpoint.load(name)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.weights.errors import CheckpointError

Array = npt.NDArray[Any]
Progress = Callable[[int], None]  # called with the number of bytes done

# numpy has no bf16: such a tensor is fp32 in memory, which is exact, and is rounded when it is written.
_ARRAY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1", "I8": "|i1"}
_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "I8": 1}


def no_progress(_: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The dtype (as safetensors names it) and shape of a tensor that has not been loaded.

    Raises:
        CheckpointError: the dtype is not supported.
    """

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in _ITEM_SIZES:
            known = ", ".join(_ITEM_SIZES)
            raise CheckpointError(f"tensors of dtype {self.dtype} are not supported, only {known}")

    @property
    def itemsize(self) -> int:
        """The size of one number in a file, in bytes."""
        return _ITEM_SIZES[self.dtype]

    @property
    def nbytes(self) -> int:
        """The size of the tensor's data in a file, in bytes."""
        return prod(self.shape) * self.itemsize

    def encode(self, array: Array) -> bytes | memoryview:
        """The tensor's data in a file, rounded to nearest even if the dtype is narrower.

        Raises:
            CheckpointError: a value does not fit fp16.
        """
        if array.shape != self.shape:
            raise AssertionError(f"shape {array.shape}, the spec has {self.shape}")
        if self.dtype == "BF16":
            return _narrow_to_bf16(array).data
        with np.errstate(over="ignore"):  # checked below
            narrowed = np.ascontiguousarray(array, dtype=_ARRAY_TYPES[self.dtype])
        if self.dtype == "F16" and not np.isfinite(narrowed).all():
            raise CheckpointError(
                "a tensor has values beyond fp16's limit of 65,504; the model cannot be stored in fp16"
            )
        return narrowed.data

    def decode(self, data: bytes | memoryview | Array) -> Array:
        """The tensor of data from a file."""
        if self.dtype == "BF16":
            words = np.frombuffer(data, dtype="<u2").astype("<u4") << np.uint32(16)
            return words.view("<f4").reshape(self.shape)
        return np.frombuffer(data, dtype=_ARRAY_TYPES[self.dtype]).reshape(self.shape)


class CheckpointTensors(Protocol):
    """Named tensors, which are computed or read when they are loaded, so that only one is in memory at a time."""

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by name."""
        ...

    def load(self, name: str) -> Array:
        """The tensor, in a dtype that its spec can encode."""
        ...


class ArraysInMemory:
    """A checkpoint of arrays in memory.

    Args:
        arrays: by name; fp32, fp16, int64, int32, int8 or uint8.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def specs(self) -> dict[str, TensorSpec]:
        """The specs of all arrays."""
        types = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8", "int8": "I8"}
        return {name: TensorSpec(types[array.dtype.name], array.shape) for name, array in self._arrays.items()}

    def load(self, name: str) -> Array:
        """One array."""
        return self._arrays[name]


class Fingerprinted:
    """A checkpoint that hashes each tensor when it is loaded; the hash does not depend on files or order."""

    def __init__(self, source: CheckpointTensors) -> None:
        self._source = source
        self._digests: dict[str, str] = {}

    def specs(self) -> dict[str, TensorSpec]:
        """The source's specs."""
        return self._source.specs()

    def load(self, name: str) -> Array:
        """The source's tensor, which is hashed."""
        array = self._source.load(name)
        if name not in self._digests:
            self._digests[name] = hashlib.sha256(self.specs()[name].encode(array)).hexdigest()
        return array

    def fingerprint(self) -> str:
        """A hash of the names, dtypes, shapes and data of all tensors; loads those that have not been loaded."""
        lines = []
        for name, spec in sorted(self.specs().items()):
            if name not in self._digests:
                self.load(name)
            lines.append(f"{name} {spec.dtype} {list(spec.shape)} {self._digests[name]}\n")
        return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _narrow_to_bf16(array: Array) -> Array:
    """The bits of bf16 for fp32, rounded to nearest even."""
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2")
