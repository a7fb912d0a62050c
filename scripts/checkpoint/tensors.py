"""What a checkpoint is to the scripts: named tensors, loaded one at a time.

Owns: the `Checkpoint` protocol, its specs and its fingerprint. Knows no file format.

    for name, spec in checkpoint.specs().items(): array = checkpoint.load(name)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .errors import CheckpointError

Array = npt.NDArray[Any]
Progress = Callable[[int], None]  # told how many bytes were done

# numpy has no bf16: such a tensor is held in fp32, which is exact, and narrowed when written.
_ARRAY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1}


def no_progress(_: int) -> None:
    """Stands in where nobody watches."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type (in safetensors' words) and shape of a tensor that has not been loaded."""

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in _ITEM_SIZES:
            known = ", ".join(_ITEM_SIZES)
            raise CheckpointError(f"tensors of type {self.dtype} are not understood, only {known}")

    @property
    def itemsize(self) -> int:
        """Bytes of one number in a file."""
        return _ITEM_SIZES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data in a file."""
        return prod(self.shape) * self.itemsize

    def encode(self, array: Array) -> bytes | memoryview:
        """The tensor's data in a file, rounded to nearest even when that is narrower."""
        if array.shape != self.shape:
            raise AssertionError(f"shape {array.shape}, the spec says {self.shape}")
        if self.dtype == "BF16":
            return _narrow_to_bf16(array).data
        with np.errstate(over="ignore"):  # said below, with a remedy
            narrowed = np.ascontiguousarray(array, dtype=_ARRAY_TYPES[self.dtype])
        if self.dtype == "F16" and not np.isfinite(narrowed).all():
            raise CheckpointError(
                "a tensor has values beyond fp16's 65,504; such a model cannot be stored in fp16"
            )
        return narrowed.data

    def decode(self, data: bytes | memoryview | Array) -> Array:
        """The tensor from its data in a file."""
        if self.dtype == "BF16":
            words = np.frombuffer(data, dtype="<u2").astype("<u4") << np.uint32(16)
            return words.view("<f4").reshape(self.shape)
        return np.frombuffer(data, dtype=_ARRAY_TYPES[self.dtype]).reshape(self.shape)


class Checkpoint(Protocol):
    """Named tensors, computed or read when asked for, so that memory holds one at a time."""

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by name."""
        ...

    def load(self, name: str) -> Array:
        """The tensor, in a type that its spec can encode."""
        ...


class Fingerprinted:
    """A checkpoint that hashes each tensor as it passes, whatever files hold it and in any order."""

    def __init__(self, source: Checkpoint) -> None:
        self._source = source
        self._digests: dict[str, str] = {}

    def specs(self) -> dict[str, TensorSpec]:
        """As the source's."""
        return self._source.specs()

    def load(self, name: str) -> Array:
        """As the source's; remembered."""
        array = self._source.load(name)
        if name not in self._digests:
            self._digests[name] = hashlib.sha256(self.specs()[name].encode(array)).hexdigest()
        return array

    def fingerprint(self) -> str:
        """Hash over names, types, shapes and data of all tensors; loads those not seen yet."""
        lines = []
        for name, spec in sorted(self.specs().items()):
            if name not in self._digests:
                self.load(name)
            lines.append(f"{name} {spec.dtype} {list(spec.shape)} {self._digests[name]}\n")
        return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _narrow_to_bf16(array: Array) -> Array:
    """fp32 to the upper half of its bits, rounded to nearest even."""
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2")
