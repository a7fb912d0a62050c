"""Round weights to four bits in AutoAWQ's GEMM layout, in exact elementwise numpy.

packed = quantize(weight, group_size=64); weight = dequantize(packed, group_size=64)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import Array

BITS = 4
MAX_LEVEL = 2**BITS - 1
NIBBLES = 8  # in an int32
# The column that nibble i holds; the order suits AutoAWQ's GEMM kernels, which unpack two nibbles at a time.
COLUMN_OF_NIBBLE = (0, 2, 4, 6, 1, 3, 5, 7)
_SMALLEST_SCALE = np.float32(2.0**-24)  # the smallest fp16 number, so that a group of zeros is not divided by 0


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One linear layer in the checkpoint's layout: K inputs, N outputs, group size g."""

    qweight: Array  # [K, N // 8] int32
    qzeros: Array  # [K // g, N // 8] int32
    scales: Array  # [K // g, N] fp16


def check_shape(name: str, shape: tuple[int, ...], group_size: int) -> None:
    """Check that a weight [N, K] fits the layout.

    Raises:
        CheckpointError: K is not a multiple of the group size, or N not of 8.
    """
    outputs, inputs = shape
    if inputs % group_size or outputs % NIBBLES:
        raise CheckpointError(
            f"{name} is [{outputs}, {inputs}]: inputs must divide by the group size {group_size} and "
            f"outputs by {NIBBLES}; choose another --group-size"
        )


def grid(weight: Array, group_size: int) -> tuple[Array, Array]:
    """The steps [N, K // g] in fp16 and the zero points [N, K // g] in fp32 of a weight [N, K], in groups along K."""
    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, inputs // group_size, group_size)
    lowest = np.minimum(groups.min(axis=2), np.float32(0))  # zero must stay representable
    highest = np.maximum(groups.max(axis=2), np.float32(0))
    step = (highest - lowest) / np.float32(MAX_LEVEL)
    scales = np.maximum(step, _SMALLEST_SCALE).astype(np.float16)
    zeros = np.clip(np.rint(-lowest / scales.astype(np.float32)), 0, MAX_LEVEL)
    return scales, zeros


def quantize(weight: Array, group_size: int) -> PackedWeight:
    """Round a weight [N, K] to the nearest of 16 values, in groups along K.

    Nibbles are computed with the scale that has been rounded to fp16, so that its rounding adds no further error.
    """
    outputs, inputs = weight.shape
    weight = weight.astype(np.float32, copy=False)
    scales, zeros = grid(weight, group_size)
    groups = weight.reshape(outputs, inputs // group_size, group_size)
    levels = np.rint(groups / scales.astype(np.float32)[:, :, None])
    levels += zeros[:, :, None]
    np.clip(levels, 0, MAX_LEVEL, out=levels)
    return PackedWeight(
        qweight=pack(levels.reshape(outputs, inputs).T),
        qzeros=pack(zeros.T),
        scales=np.ascontiguousarray(scales.T),
    )


def dequantize(packed: PackedWeight, group_size: int) -> Array:
    """The dequantized weight [N, K] in fp32: (q - z) * s."""
    zeros = np.repeat(unpack(packed.qzeros), group_size, axis=0).astype(np.float32)
    scales = np.repeat(packed.scales.astype(np.float32), group_size, axis=0)
    levels = unpack(packed.qweight).astype(np.float32)
    return np.ascontiguousarray(((levels - zeros) * scales).T)


def pack(levels: Array) -> Array:
    """Pack [rows, N] of 0…15 into [rows, N // 8] int32."""
    rows, columns = levels.shape
    words = np.zeros((rows, columns // NIBBLES), dtype=np.uint32)
    blocks = levels.astype(np.uint32).reshape(rows, columns // NIBBLES, NIBBLES)
    for nibble, column in enumerate(COLUMN_OF_NIBBLE):
        words |= blocks[:, :, column] << np.uint32(BITS * nibble)
    return words.view(np.int32)


def unpack(words: Array) -> Array:
    """Unpack [rows, N // 8] int32 into [rows, N] of 0…15, uint8."""
    rows, columns = words.shape
    blocks = np.empty((rows, columns, NIBBLES), dtype=np.uint8)
    for nibble, column in enumerate(COLUMN_OF_NIBBLE):
        blocks[:, :, column] = (words.view(np.uint32) >> np.uint32(BITS * nibble)) & np.uint32(MAX_LEVEL)
    return blocks.reshape(rows, columns * NIBBLES)
