"""Computes and writes merged tensors block by block on several cores, so that no whole tensor is in memory.

Each block of rows is read, rounded to NF4 where asked, changed by the adapter and rounded to the tensor's type once. It
is also compared with the weights that the adapter was trained with.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pipeline.weights.atomic import partial_file
from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.lora_adapter import LoraChange, PeftAdapter
from pipeline.weights.merging.merge_plan import PlannedTensor
from pipeline.weights.merging.nf4 import BLOCK, block_factors, block_maxima, round_trip
from pipeline.weights.safetensors_io import layout
from pipeline.weights.tensors import Array, Progress, TensorSpec

_ELEMENTS = 2**20  # of a block
_WORKERS = min(4, os.cpu_count() or 1)
_T = TypeVar("_T")
_Norms = tuple[Array, Array] | None


def write_shard(
    path: Path, tensors: dict[str, PlannedTensor], adapter: PeftAdapter, double: bool | None, progress: Progress
) -> tuple[str, dict[str, Sums]]:
    """Write one file, atomically; returns the digest of all that was read, and the differences of each weight.

    Args:
        adapter: what changes the tensors.
        double: whether to round linear layers to NF4, with double quantization (True) or without; None for neither.
        progress: called with the number of bytes written.

    Raises:
        CheckpointError: a value is not finite, or does not fit the tensor's type.
    """
    header, offsets = layout({name: tensor.spec for name, tensor in tensors.items()})
    digest, differences = hashlib.sha256(), {}

    def blocks(tensor: PlannedTensor) -> Iterator[tuple[bytes, int]]:
        for data, begin in read_blocks(tensor):
            digest.update(data)
            yield data, begin

    with partial_file(path) as partial, partial.open("wb") as file, ThreadPoolExecutor(_WORKERS) as pool:
        file.write(header)
        for name in sorted(tensors):
            file.seek(offsets[name])
            merge = changes_of_rows(adapter, double, name, tensors[name], pool)
            encode = _copied if merge is None else merge.encode
            sums = Sums()
            for data, part in _ordered(pool, encode, blocks(tensors[name])):
                file.write(data)
                sums += part
                progress(len(data))
            differences[name] = sums
    return digest.hexdigest(), {name: sums for name, sums in differences.items() if sums.live}


def _copied(data: bytes, _: int) -> tuple[bytes, Sums]:
    return data, Sums()


def changes_of_rows(
    adapter: PeftAdapter, double: bool | None, name: str, tensor: PlannedTensor, pool: ThreadPoolExecutor
) -> RowMerge | None:
    """What changes a tensor's rows; None if they are copied. `double` is as in `write_shard`."""
    factors = None
    if double is not None and tensor.linear:
        spec = tensor.source_spec
        maxima = _ordered(pool, lambda data, _: block_maxima(decode_rows(spec, data)), read_blocks(tensor))
        # A maximum that is not finite makes weights that are not, which are refused when they are written.
        factors = block_factors(np.concatenate(list(maxima)), double=double)
    elif not tensor.changed:
        return None
    merge = RowMerge(
        name=name,
        spec=tensor.spec,
        source_spec=tensor.source_spec,
        factors=factors,
        change=adapter.change(tensor.lora) if tensor.lora else None,
        bias=adapter.bias(tensor.bias) if tensor.bias else None,
        tokens=adapter.token_rows(tensor.tokens) if tensor.tokens else None,
    )
    if merge.change is not None and merge.change.needs_column_norms:
        merge.add_column_norms(_ordered(pool, merge.column_squares, read_blocks(tensor)))
    return merge


def read_blocks(tensor: PlannedTensor) -> Iterator[tuple[bytes, int]]:
    """The data of whole rows, with the first row's index; each but the last is whole blocks of NF4."""
    spec = tensor.source_spec
    width = math.prod(spec.shape[1:])
    step = BLOCK // math.gcd(BLOCK, width)
    rows = max(step, _ELEMENTS // max(width, 1) // step * step)
    count = spec.shape[0] if spec.shape else 1
    for begin in range(0, count, rows):
        end = min(begin + rows, count)
        yield tensor.source.read(tensor.source_name, begin * width * spec.itemsize, end * width * spec.itemsize), begin


def merged_rows(tensor: PlannedTensor, pool: ThreadPoolExecutor, compute: Callable[[bytes, int], Array]) -> Array:
    """A whole tensor, from what `compute` makes of each block of its rows."""
    return np.concatenate(list(_ordered(pool, compute, read_blocks(tensor)))).reshape(tensor.spec.shape)


def _ordered(
    pool: ThreadPoolExecutor, compute: Callable[[bytes, int], _T], blocks: Iterator[tuple[bytes, int]]
) -> Iterator[_T]:
    """The results in the order of the blocks; only a few blocks are in memory at a time."""
    waiting: deque[Future[_T]] = deque()
    for data, begin in blocks:
        waiting.append(pool.submit(compute, data, begin))
        if len(waiting) > _WORKERS:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@dataclass(slots=True)
class RowMerge:
    """What happens to the rows of one tensor, with the parts that `PlannedTensor` names."""

    name: str
    spec: TensorSpec
    source_spec: TensorSpec
    factors: Array | None = None  # of the blocks of NF4
    change: LoraChange | None = None
    bias: Array | None = None
    tokens: tuple[Array, Array] | None = None
    _norms: _Norms = field(default=None, init=False)

    @np.errstate(all="ignore")  # what is not finite is found
    def encode(self, data: bytes, begin: int) -> tuple[bytes, Sums]:
        """The merged rows from `begin`, as they are stored, and their differences from the live ones.

        Raises:
            CheckpointError: a value is not finite, or does not fit the tensor's type.
        """
        weight = decode_rows(self.source_spec, data)
        delta = self._delta(weight, begin)
        live = self._finish(self._round(weight, begin), delta, begin, 0)
        if not np.isfinite(live).all():
            raise CheckpointError(f"{self.name} has values that are not finite, in the base or after the merge")
        encoded = self._encode(live)
        plain = None if self.factors is None else self._stored_plain(weight, delta, begin)
        return encoded, Sums.of(live, self._decode(encoded, live.shape), plain)

    def live(self, data: bytes, begin: int) -> Array:
        """The rows as the adapter was trained with them: the base, rounded if it was, plus the adapter, in float32."""
        weight = decode_rows(self.source_spec, data)
        return self._finish(self._round(weight, begin), self._delta(weight, begin), begin, 0)

    def plain(self, data: bytes, begin: int) -> Array:
        """The rows as a merge without NF4 stores them."""
        weight = decode_rows(self.source_spec, data)
        return self._stored_plain(weight, self._delta(weight, begin), begin)

    def _delta(self, weight: Array, begin: int) -> Array | None:
        return None if self.change is None else self.change.delta(begin, begin + len(weight))

    def _stored_plain(self, weight: Array, delta: Array | None, begin: int) -> Array:
        return self._decode(self._encode(self._finish(weight, delta, begin, 1)), weight.shape)

    def column_squares(self, data: bytes, begin: int) -> tuple[Array, Array]:
        """The sums of squares of each column over some rows, rounded to NF4 or not, before DoRA's magnitudes."""
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
        if self.factors is None:
            return weight
        first_block = begin * math.prod(weight.shape[1:]) // BLOCK
        rounded = round_trip(weight, self.factors[first_block:])
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


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of squares over a tensor.

    Attributes:
        live: the sum for the weights with which the adapter was trained: the base, rounded to NF4 if it was, plus the
            adapter.
        merged: the sum for what is written minus those.
        plain: the sum for what a merge without NF4 would write minus those; equal to `merged` without NF4.
    """

    live: float = 0.0
    merged: float = 0.0
    plain: float = 0.0

    @classmethod
    def of(cls, live: Array, merged: Array, plain: Array | None = None) -> Sums:
        """The sums of one block of weights."""
        error = _square(merged - live)
        return cls(_square(live), error, error if plain is None else _square(plain - live))

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.live + other.live, self.merged + other.merged, self.plain + other.plain)

    def relative(self, *, nf4: bool) -> dict[str, float]:
        """The relative errors (Frobenius norms), by the way of merging."""
        live = self.live or 1.0
        merged, plain = (float(f"{math.sqrt(value / live):.6g}") for value in (self.merged, self.plain))
        return {"nf4_merge": merged, "plain_merge": plain} if nf4 else {"plain_merge": merged}


def differences(tensors: dict[str, Sums], *, nf4: bool) -> dict[str, Any]:
    """The relative errors of each tensor and of all together."""
    return {
        "live": "NF4 base and adapter" if nf4 else "base and adapter",
        "all": sum(tensors.values(), Sums()).relative(nf4=nf4),
        "tensors": {name: sums.relative(nf4=nf4) for name, sums in sorted(tensors.items())},
    }


def _square(array: Array) -> float:
    return float(np.vdot(array, array))
