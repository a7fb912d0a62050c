"""What a checkpoint is to the scripts: named tensors, loaded one at a time.

Owns: the `Checkpoint` protocol, its specs and its fingerprint. Knows no file format.

    for name, spec in checkpoint.specs().items(): array = checkpoint.load(name)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Progress = Callable[[int], None]  # told how many bytes were done


def no_progress(_: int) -> None:
    """Stands in where nobody watches."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type and shape of a tensor that has not been loaded."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


class Checkpoint(Protocol):
    """Named tensors, computed or read when asked for, so that memory holds one at a time."""

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by name."""
        ...

    def load(self, name: str) -> Array:
        """The tensor, with the type and shape of its spec."""
        ...


class FingerprintHasher:
    """Hash over names, types, shapes and data, fed in order of names.

    It identifies the numbers of a checkpoint whatever files hold them.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, name: str, array: Array) -> None:
        """Add one tensor."""
        self._hash.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        self._hash.update(np.ascontiguousarray(array).data)

    def digest(self) -> str:
        """`sha256:` and the hash in hex."""
        return f"sha256:{self._hash.hexdigest()}"


def fingerprint(checkpoint: Checkpoint, progress: Progress = no_progress) -> str:
    """The checkpoint's fingerprint; loads every tensor once."""
    hasher = FingerprintHasher()
    for name, spec in sorted(checkpoint.specs().items()):
        hasher.update(name, checkpoint.load(name))
        progress(spec.nbytes)
    return hasher.digest()
