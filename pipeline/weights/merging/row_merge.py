"""Compute some rows of one merged tensor from the rows that were read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import Array, TensorSpec

from .differences import Sums
from .lora_change import LoraChange
from .nf4 import BLOCK, Nf4Constants

_Norms = tuple[Array, Array] | None


@dataclass(slots=True)
class RowMerge:
    """What happens to the rows of one tensor; see `PlannedTensor` for the parts."""

    name: str
    spec: TensorSpec
    source_spec: TensorSpec
    constants: Nf4Constants | None = None
    change: LoraChange | None = None
    bias: Array | None = None
    tokens: tuple[Array, Array] | None = None
    _norms: _Norms = field(default=None, init=False)

    def encode(self, data: bytes, begin: int) -> tuple[bytes, Sums]:
        """The merged rows from `begin`, as they are stored, and their differences from the live ones.

        Raises:
            CheckpointError: a value is not finite, or does not fit the tensor's type.
        """
        with np.errstate(all="ignore"):  # what is not finite is found below
            return self._merge(data, begin)

    def live(self, data: bytes, begin: int) -> Array:
        """Rows as the adapter was trained with them: the base, rounded if it was, plus the adapter, in float32."""
        weight = decode_rows(self.source_spec, data)
        return self._finish(self._round(weight, begin), self._delta(weight, begin), begin, 0)

    def plain(self, data: bytes, begin: int) -> Array:
        """Rows as a merge without NF4 stores them."""
        weight = decode_rows(self.source_spec, data)
        return self._stored_plain(weight, self._delta(weight, begin), begin)

    def _merge(self, data: bytes, begin: int) -> tuple[bytes, Sums]:
        weight = decode_rows(self.source_spec, data)
        delta = self._delta(weight, begin)
        live = self._finish(self._round(weight, begin), delta, begin, 0)
        if not np.isfinite(live).all():
            raise CheckpointError(f"{self.name} has values that are not finite, in the base or after the merge")
        encoded = self._encode(live)
        plain = None if self.constants is None else self._stored_plain(weight, delta, begin)
        return encoded, Sums.of(live, self._decode(encoded, live.shape), plain)

    def _delta(self, weight: Array, begin: int) -> Array | None:
        return None if self.change is None else self.change.delta(begin, begin + len(weight))

    def _stored_plain(self, weight: Array, delta: Array | None, begin: int) -> Array:
        return self._decode(self._encode(self._finish(weight, delta, begin, 1)), weight.shape)

    def column_squares(self, data: bytes, begin: int) -> tuple[Array, Array]:
        """Sums of squares of each column over some rows, rounded to NF4 or not, before DoRA's magnitudes."""
        assert self.change is not None
        weight = decode_rows(self.source_spec, data)
        with np.errstate(all="ignore"):
            delta = self.change.delta(begin, begin + len(weight))
            live, plain = self._round(weight, begin) + delta, weight + delta
            return np.square(live).sum(axis=0, dtype=np.float64), np.square(plain).sum(axis=0, dtype=np.float64)

    def add_column_norms(self, parts: Iterable[tuple[Array, Array]]) -> None:
        """Take the norms of the columns from the sums of all rows."""
        live, plain = (sum(squares) for squares in zip(*parts, strict=True))
        if not (np.isfinite(live).all() and np.isfinite(plain).all()):
            raise CheckpointError(f"{self.name} has values that are not finite, in the base or after the merge")
        self._norms = np.sqrt(live).astype(np.float32), np.sqrt(plain).astype(np.float32)

    def _round(self, weight: Array, begin: int) -> Array:
        """The weights as QLoRA has them, in the base's type."""
        if self.constants is None:
            return weight
        first_block = begin * math.prod(weight.shape[1:]) // BLOCK
        rounded = self.constants.round_trip(weight, first_block)
        spec = TensorSpec(self.source_spec.dtype, weight.shape)
        return spec.decode(spec.encode(rounded))

    def _finish(self, weight: Array, delta: Array | None, begin: int, norms: int) -> Array:
        """Add the adapter to some rows; `norms` chooses those of the rounded weights (0) or of the others (1)."""
        if self.change is not None and delta is not None:
            weight = self.change.normalize(weight + delta, begin, self._norms[norms] if self._norms else None)
        if self.bias is not None:
            weight = weight + self.bias[begin : begin + len(weight)]
        if self.tokens is not None:
            rows, values = self.tokens
            here = (rows >= begin) & (rows < begin + len(weight))
            weight = weight.copy()
            weight[rows[here] - begin] = values[here]
        return weight

    def _encode(self, rows: Array) -> bytes:
        try:
            return bytes(TensorSpec(self.spec.dtype, rows.shape).encode(rows))
        except CheckpointError as error:
            raise CheckpointError(f"{self.name}: {error}") from error

    def _decode(self, data: bytes, shape: tuple[int, ...]) -> Array:
        return TensorSpec(self.spec.dtype, shape).decode(data)


def decode_rows(spec: TensorSpec, data: bytes) -> Array:
    """The rows of a tensor's data, in float32."""
    width = math.prod(spec.shape[1:]) * spec.itemsize
    shape = (len(data) // width if width else 0, *spec.shape[1:]) if spec.shape else ()
    return TensorSpec(spec.dtype, shape).decode(data).astype(np.float32, copy=False)
