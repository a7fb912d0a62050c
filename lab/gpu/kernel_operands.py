"""Fresh random operands for kernels, on torch's default device, and outputs that are NaN until a kernel writes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from serving.kernels.base import AttentionMetadata, AttentionShape, AwqTensors


def poisoned(*shape: int) -> Tensor:
    """An output filled with NaN."""
    return torch.full(shape, float("nan"))


def int32(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    """A tensor of int32."""
    return torch.tensor(values, dtype=torch.int32)


def bitmasks_of(columns: Sequence[Sequence[int]], outputs: int) -> Tensor:
    """[len(columns), ceil(outputs / 32)] int32 with the bits of each row's columns set."""
    bits = np.zeros((len(columns), -(-outputs // 32) * 32), np.uint8)
    for row, chosen in zip(bits, columns, strict=True):
        row[list(chosen)] = 1
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))


def random_awq(inputs: int, outputs: int, group_size: int) -> AwqTensors:
    """Random quants and zeros, for which any bits are valid, with scales as a quantizer makes them."""
    groups = inputs // group_size

    def words(rows: int) -> Tensor:
        return torch.randint(-(2**31), 2**31, (rows, outputs // 8), dtype=torch.int32)

    return AwqTensors(
        qweight=words(inputs),
        qzeros=words(groups),
        scales=(torch.rand(groups, outputs) * 0.02 + 0.001).half(),
        group_size=group_size,
    )


def random_batch(spans: Sequence[tuple[int, int]], block_size: int, num_blocks: int) -> AttentionMetadata:
    """One request per span (start, stop) of positions, with different, randomly chosen blocks."""
    free = torch.randperm(num_blocks).tolist()
    tables = [[free.pop() for _ in range(-(-stop // block_size))] for _, stop in spans]
    return ragged_batch(spans, tables, block_size)


def ragged_batch(spans: Sequence[tuple[int, int]], tables: Sequence[list[int]], block_size: int) -> AttentionMetadata:
    """One request per span: it computes tokens start … stop - 1 with the blocks of its table."""
    starts, slots = [0], list[int]()
    for (start, stop), table in zip(spans, tables, strict=True):
        starts.append(starts[-1] + stop - start)
        slots += [table[at // block_size] * block_size + at % block_size for at in range(start, stop)]
    width = max(map(len, tables))
    padded = [table + [0] * (width - len(table)) for table in tables]
    return AttentionMetadata(int32(starts), int32([stop for _, stop in spans]), int32(padded), int32(slots))


def qkv_width(shape: AttentionShape) -> int:
    """Columns of queries, keys and values together."""
    return (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
