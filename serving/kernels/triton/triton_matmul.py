"""Matmuls in Triton: repack AWQ weights when they are loaded, and choose the kernel by the number of rows.

Up to 16 rows and up to 64 rows have a tile of their own with the same sums. With more rows, weights are dequantized to
float16 and torch multiplies, unless everything is float32: then tiles of 64 rows compute any number of rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from serving.kernels.base import AwqTensors, AwqWeight
from serving.kernels.reference import unpack_awq
from serving.kernels.shape_checks import DENSE_DTYPES, check_tensor, require
from serving.kernels.triton import matmul_device
from serving.kernels.triton.launching import launch
from serving.kernels.triton.tiles import ROWS, TileSizes

_DOTS = 4  # of the larger tile
_SUM_BLOCK = 1024


class TritonMatmul:
    """Multiplies float32 rows with 4-bit and with unquantized weights.

    Args:
        tiles: sizes of tiles and splits.
        half: whether inputs are rounded to float16 for 4-bit weights and to tf32 for others; sums are float32.
    """

    def __init__(self, tiles: TileSizes, *, half: bool) -> None:
        self._tiles = tiles
        self._half = half

    def pack_awq(self, tensors: AwqTensors) -> AwqWeight:
        """Repack a weight so that a tile's quants are adjacent, eight inputs of a column in a word.

        quants: [tiles, steps, columns, inputs // 8] int32; zeros: [groups, tiles · columns] uint8; scales the same in
        float16. Columns past the last are 0.
        """
        num_inputs, packed = tensors.qweight.shape
        num_outputs, group, columns = 8 * packed, tensors.group_size, self._tiles.columns
        require(group > 0 and group % ROWS == 0, f"group size {group} is not a multiple of {ROWS}")
        require(num_inputs % group == 0, f"{num_inputs} inputs are not a multiple of group size {group}")
        groups, inputs = num_inputs // group, self._tiles.awq_inputs(group)
        check_tensor("qweight", tensors.qweight, (None, None), torch.int32)
        check_tensor("qzeros", tensors.qzeros, (groups, packed), torch.int32)
        check_tensor("scales", tensors.scales, (groups, num_outputs), torch.float16)
        tiles = triton.cdiv(num_outputs, columns)
        quants = unpack_awq(tensors.qweight).new_zeros(tiles * columns, num_inputs)
        quants[:num_outputs] = unpack_awq(tensors.qweight).T
        ordered = quants.view(tiles, columns, num_inputs // inputs, inputs // 8, 8).transpose(1, 2)
        words = torch.zeros(ordered.shape[:-1], dtype=torch.int32, device=quants.device)
        for nibble in range(8):
            words |= ordered[..., nibble] << (4 * nibble)
        zeros = torch.zeros(groups, tiles * columns, dtype=torch.uint8, device=quants.device)
        zeros[:, :num_outputs] = unpack_awq(tensors.qzeros)
        scales = torch.zeros(groups, tiles * columns, dtype=torch.float16, device=quants.device)
        scales[:, :num_outputs] = tensors.scales
        return AwqWeight(words, zeros, scales, num_inputs, num_outputs, group)

    def awq_gemm(self, x: Tensor, weight: AwqWeight, out: Tensor) -> None:
        """See `Kernels.awq_gemm`."""
        check_tensor("x", x, (None, weight.in_features), torch.float32)
        check_tensor("out", out, (x.shape[0], weight.out_features), torch.float32)
        rows = x.shape[0]
        if self._half and rows > ROWS * _DOTS:
            out.copy_(x.half() @ self.dequantize(weight).T)
            return
        inputs, dots = self._tiles.awq_inputs(weight.group_size), 1 if rows <= ROWS else _DOTS
        splits = triton.cdiv(weight.in_features, self._tiles.split(inputs))
        parts = make_parts(out, splits)
        launch(
            matmul_device.w4a16,
            (weight.quants.shape[0], splits, triton.cdiv(rows, ROWS * dots)),
            *(x, weight.quants, weight.zeros, weight.scales, parts, rows, weight.in_features, weight.out_features),
            GROUP=weight.group_size,
            INPUTS=inputs,
            COLUMNS=self._tiles.columns,
            SPLIT_STEPS=self._tiles.split(inputs) // inputs,
            DOTS=dots,
            DTYPE=tl.float16 if self._half else tl.float32,
        )
        sum_parts(parts, out)

    def dequantize(self, weight: AwqWeight) -> Tensor:
        """(q − z) · s, rounded, as [N, K] float16."""
        inputs = self._tiles.awq_inputs(weight.group_size)
        out = torch.empty(weight.out_features, weight.in_features, dtype=torch.float16, device=weight.quants.device)
        launch(
            matmul_device.dequantize,
            tuple(weight.quants.shape[:2]),
            *(weight.quants, weight.zeros, weight.scales, out, weight.in_features, weight.out_features),
            GROUP=weight.group_size,
            INPUTS=inputs,
            COLUMNS=self._tiles.columns,
        )
        return out

    def dense_gemm(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """See `Kernels.dense_gemm`."""
        check_tensor("weight", weight, (None, None), DENSE_DTYPES)
        check_tensor("x", x, (None, weight.shape[1]), torch.float32)
        check_tensor("out", out, (x.shape[0], weight.shape[0]), torch.float32, row_strided=True)
        rows, (num_outputs, num_inputs) = x.shape[0], weight.shape
        if self._half and rows > ROWS * _DOTS:
            out.copy_(x.to(weight.dtype) @ weight.T)
            return
        inputs = self._tiles.dense_inputs
        splits = triton.cdiv(num_inputs, self._tiles.split(inputs))
        parts = make_parts(out, splits)
        launch(
            matmul_device.dense,
            (triton.cdiv(num_outputs, self._tiles.columns), splits, triton.cdiv(rows, ROWS)),
            *(x, weight, parts, rows, num_inputs, num_outputs),
            INPUTS=inputs,
            COLUMNS=self._tiles.columns,
            SPLIT_STEPS=self._tiles.split(inputs) // inputs,
            PRECISION="tf32" if self._half else "ieee",
        )
        sum_parts(parts, out)


def make_parts(out: Tensor, splits: int) -> Tensor:
    """Where the kernel writes its sums [splits, rows, outputs]: into the output itself if that has their layout."""
    if splits == 1 and out.is_contiguous():
        return out[None]
    return torch.empty(splits, *out.shape, device=out.device)


def sum_parts(parts: Tensor, out: Tensor) -> None:
    """Add up the parts in their order, unless the only one is the output."""
    if parts.data_ptr() == out.data_ptr():
        return
    splits, rows, columns = parts.shape
    grid = (rows, triton.cdiv(columns, _SUM_BLOCK))
    launch(matmul_device.sum_splits, grid, parts, out, rows, columns, out.stride(0), splits, BLOCK=_SUM_BLOCK)
