"""4-bit layers of compressed-tensors' `pack-quantized` format as AutoAWQ lays them out.

There a weight is int32 [N, K / 8], eight inputs in a word, lowest nibble first, each value stored plus 8. Zero points
are packed likewise along N. Source: compressed_tensors/compressors/pack_quantized (compressed-tensors 0.17).
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.errors import WeightsError
from serving.kernels.base import AWQ_ORDER, AwqTensors

_OFFSET = 8  # of a stored value


def unpack(packed: Tensor, columns: int) -> Tensor:
    """[R, C / 8] int32 → [R, C] int32 of 0 … 15."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return ((packed[:, :, None] >> shifts) & 15).reshape(packed.shape[0], -1)[:, :columns]


def awq_tensors(name: str, packed: Tensor, scale: Tensor, zero_point: Tensor | None, group_size: int) -> AwqTensors:
    """The same layer in AutoAWQ's layout.

    Args:
        name: of the layer, for errors.
        packed: [N, K // 8] int32.
        scale: [N, K // group_size], any float.
        zero_point: [N // 8, K // group_size] int32; None for symmetric layers.
        group_size: inputs that share a scale.

    Raises:
        WeightsError: a scale does not fit fp16.
    """
    outputs, groups = scale.shape
    values = unpack(packed, packed.shape[1] * 8).T.contiguous()  # [K, N]
    if zero_point is None:
        zeros = torch.full((groups, outputs), _OFFSET, dtype=torch.int32)
    else:
        zeros = unpack(zero_point.T.contiguous(), outputs)  # [K // group_size, N]
    scales = scale.float().T.contiguous().half()
    if not torch.isfinite(scales).all():
        raise WeightsError(f"{name} has a scale beyond fp16's 65,504; quantize again with scripts/quantize_awq")
    return AwqTensors(_pack(values), _pack(zeros), scales, group_size)


def _pack(values: Tensor) -> Tensor:
    """[R, N] int32 of 0 … 15 → [R, N // 8] int32 in AutoAWQ's order."""
    grouped = values.view(values.shape[0], -1, 8)
    words = torch.zeros(grouped.shape[:2], dtype=torch.int32)
    for nibble, column in enumerate(AWQ_ORDER):
        words |= grouped[:, :, column] << (4 * nibble)
    return words
