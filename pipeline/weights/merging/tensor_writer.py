"""Write merged tensors block by block, so that no whole tensor is in memory, on several cores.

Each block of rows is read, rounded to NF4 where asked, changed by the adapter and rounded to the tensor's type once.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from pipeline.weights.atomic import partial_file
from pipeline.weights.safetensors_io import layout
from pipeline.weights.tensors import Array, Progress

from .differences import Sums
from .lora_adapter import LoraAdapter
from .merge_plan import PlannedTensor
from .nf4 import BLOCK, Nf4Constants, block_maxima
from .row_merge import RowMerge, decode_rows

_ELEMENTS = 2**20  # of a block
_WORKERS = min(4, os.cpu_count() or 1)
_T = TypeVar("_T")


class TensorWriter:
    """Writes shards of a merge.

    Args:
        adapter: what changes the tensors.
        double: whether to round linear layers to NF4, with double quantization (True) or without; None for neither.
        progress: called with the number of bytes written.
    """

    def __init__(self, adapter: LoraAdapter, double: bool | None, progress: Progress) -> None:
        self._adapter = adapter
        self._double = double
        self._progress = progress

    def write(self, path: Path, tensors: dict[str, PlannedTensor]) -> tuple[str, dict[str, Sums]]:
        """Write one file, atomically; returns the digest of all that was read, and the differences of each weight.

        Raises:
            CheckpointError: a value is not finite, or does not fit the tensor's type.
        """
        header, offsets = layout({name: tensor.spec for name, tensor in tensors.items()})
        digest, differences = hashlib.sha256(), {}
        with partial_file(path) as partial, partial.open("wb") as file, ThreadPoolExecutor(_WORKERS) as pool:
            file.write(header)
            for name in sorted(tensors):
                file.seek(offsets[name])
                differences[name] = self._write(file, name, tensors[name], digest.update, pool)
        return digest.hexdigest(), {name: sums for name, sums in differences.items() if sums.live}

    def _write(
        self,
        file: BinaryIO,
        name: str,
        tensor: PlannedTensor,
        read_bytes: Callable[[bytes], None],
        pool: ThreadPoolExecutor,
    ) -> Sums:
        merge = prepare_rows(self._adapter, self._double, name, tensor, pool)
        sums = Sums()

        def compute(data: bytes, begin: int) -> tuple[bytes, Sums]:
            return (data, Sums()) if merge is None else merge.encode(data, begin)

        def blocks() -> Iterator[tuple[bytes, int]]:
            for data, begin in read_blocks(tensor):
                read_bytes(data)
                yield data, begin

        for data, part in _ordered(pool, compute, blocks()):
            file.write(data)
            sums += part
            self._progress(len(data))
        return sums


def prepare_rows(
    adapter: LoraAdapter, double: bool | None, name: str, tensor: PlannedTensor, pool: ThreadPoolExecutor
) -> RowMerge | None:
    """What changes a tensor's rows; None if they are copied. `double` is as in `TensorWriter`."""
    constants = None
    if double is not None and tensor.linear:
        spec = tensor.source_spec
        maxima = _ordered(pool, lambda data, _: block_maxima(decode_rows(spec, data)), read_blocks(tensor))
        # A maximum that is not finite makes weights that are not, which are refused when they are written.
        constants = Nf4Constants.of_blocks(np.concatenate(list(maxima)), double=double)
    elif not tensor.changed:
        return None
    merge = RowMerge(
        name=name,
        spec=tensor.spec,
        source_spec=tensor.source_spec,
        constants=constants,
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
    """Results in the order of the blocks; only a few blocks are in memory at a time."""
    waiting: deque[Future[_T]] = deque()
    for data, begin in blocks:
        waiting.append(pool.submit(compute, data, begin))
        if len(waiting) > _WORKERS:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
