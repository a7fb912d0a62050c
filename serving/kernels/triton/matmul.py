"""Matmuls in Triton: repack AWQ weights when they are loaded, and choose the tile by the number of rows.

Programs of 16, 32 and 64 rows have the same sums, so a row has the same bits among any number of others.
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
from serving.kernels.triton.tiles import ROW_TILES, ROWS, STEP, TileSizes

_SUM_BLOCK = 1024
_MAGIC = 1024  # float16 has all integers from here to 2047


class TritonMatmul:
    """Multiplies rows with 4-bit and with unquantized weights.

    Args:
        tiles: sizes of tiles and splits.
        half: whether inputs are float16 for 4-bit and float16 weights, and rounded to tf32 for others; sums are
            float32.
    """

    def __init__(self, tiles: TileSizes, *, half: bool) -> None:
        self._tiles = tiles
        self._half = half
        self._dtype = torch.float16 if half else torch.float32

    def pack_awq(self, tensors: AwqTensors) -> AwqWeight:
        """Repack a weight into the order of `matmul_device.unpack_quants`, eight quants in a word.

        quants: [tiles, steps, columns · inputs // 8] int32; zeros: [groups, tiles · columns] int32, whose low halves
        are 1024 + z and whose high halves are the scales, both float16; scales is empty. Columns past the last are 0.

        Raises:
            KernelArgumentError: the group size is not a multiple of 32, or a tensor has another shape or dtype.
        """
        num_inputs, packed = tensors.qweight.shape
        num_outputs, group, columns = 8 * packed, tensors.group_size, self._tiles.columns
        require(group > 0 and group % STEP == 0, f"group size {group} is not a multiple of {STEP}")
        require(num_inputs % group == 0, f"{num_inputs} inputs are not a multiple of group size {group}")
        groups, inputs = num_inputs // group, self._tiles.awq_inputs(group)
        check_tensor("qweight", tensors.qweight, (None, None), torch.int32)
        check_tensor("qzeros", tensors.qzeros, (groups, packed), torch.int32)
        check_tensor("scales", tensors.scales, (groups, num_outputs), torch.float16)
        width = triton.cdiv(num_outputs, columns) * columns
        quants = tensors.qweight.new_zeros(width, num_inputs)
        quants[:num_outputs] = unpack_awq(tensors.qweight).T
        halves = torch.zeros(groups, width, 2, dtype=torch.float16, device=quants.device)
        halves[..., 0] = _MAGIC
        halves[:, :num_outputs, 0] += unpack_awq(tensors.qzeros)
        halves[:, :num_outputs, 1] = tensors.scales
        words = order_quants(quants, columns=columns, inputs=inputs, warps=self._tiles.warps)
        zeros = halves.view(torch.int32)[..., 0].contiguous()
        return AwqWeight(words, zeros, tensors.scales.new_empty(0), num_inputs, num_outputs, group)

    def num_parts(self, weight: AwqWeight) -> int:
        """See `Kernels.num_parts`."""
        tiles, steps, _ = weight.quants.shape
        return int(triton.cdiv(steps, self._tiles.split_steps(tiles, steps)))

    def awq_gemm(self, x: Tensor, weight: AwqWeight, out: Tensor) -> None:
        """See `Kernels.awq_gemm`."""
        check_tensor("x", x, (None, weight.in_features), self._dtype)
        rows, splits = x.shape[0], self.num_parts(weight)
        whole = out.dim() == 2
        shape = (rows, weight.out_features)
        check_tensor("out", out, shape if whole else (splits, *shape), torch.float32)
        parts = make_parts(out, splits) if whole else out
        tiles, steps, _ = weight.quants.shape
        # With four, float32 takes more than the 99 KiB of shared memory that GPUs with capability 8.6 and 8.9 have.
        dots = min(dots_for(rows), ROW_TILES[-1] if self._half else 2)
        launch(
            matmul_device.w4a16,
            (triton.cdiv(rows, ROWS * dots), tiles, splits),
            *(x, weight.quants, weight.zeros, parts, rows, weight.in_features, weight.out_features),
            GROUP=weight.group_size,
            INPUTS=self._tiles.awq_inputs(weight.group_size),
            COLUMNS=self._tiles.columns,
            WARPS=self._tiles.warps,
            SPLIT_STEPS=self._tiles.split_steps(tiles, steps),
            DOTS=dots,
            DTYPE=tl.float16 if self._half else tl.float32,
            num_warps=self._tiles.warps,
            num_stages=self._stages(dots),
        )
        if whole:
            sum_parts(parts, out)

    def _stages(self, dots: int) -> int:
        """Steps of a 4-bit matmul that are loaded at once: what fits shared memory, of which float32 takes twice."""
        return min(self._tiles.stages, (3 if dots > 1 else 4) if self._half else 2)

    def dense_gemm(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """See `Kernels.dense_gemm`."""
        check_tensor("weight", weight, (None, None), DENSE_DTYPES)
        check_tensor("x", x, (None, weight.shape[1]), (torch.float32, self._dtype))
        check_tensor("out", out, (x.shape[0], weight.shape[0]), torch.float32, row_strided=True)
        rows, (num_outputs, num_inputs) = x.shape[0], weight.shape
        sizes = dense_sizes(self._tiles, weight, half=self._half)
        splits, dots = dense_splits(self._tiles, weight), dots_for(rows)
        parts = make_parts(out, splits)
        launch(
            matmul_device.dense,
            (triton.cdiv(rows, ROWS * dots), triton.cdiv(num_outputs, self._tiles.dense_columns), splits),
            *(x, weight, parts, rows, num_inputs, num_outputs),
            DOTS=dots,
            num_warps=8 if dots == ROW_TILES[-1] else 4,  # with fewer it spills registers
            **sizes,
        )
        sum_parts(parts, out)


def dots_for(rows: int) -> int:
    """Dots of 16 rows of one program."""
    return next((dots for dots in ROW_TILES if rows <= ROWS * dots), ROW_TILES[-1])


def dense_splits(tiles: TileSizes, weight: Tensor) -> int:
    """Splits of the inputs of a product with an unquantized weight [outputs, inputs]."""
    return int(triton.cdiv(triton.cdiv(weight.shape[1], tiles.dense_inputs), _dense_split_steps(tiles, weight)))


def _dense_split_steps(tiles: TileSizes, weight: Tensor) -> int:
    num_outputs, num_inputs = weight.shape
    return tiles.split_steps(triton.cdiv(num_outputs, tiles.dense_columns), triton.cdiv(num_inputs, tiles.dense_inputs))


def dense_sizes(tiles: TileSizes, weight: Tensor, *, half: bool) -> dict[str, object]:
    """The constants of `matmul_device.dense` and `chosen` for a weight [outputs, inputs], the same for equal bits."""
    is_half = half and weight.dtype is torch.float16
    return {
        "INPUTS": tiles.dense_inputs,
        "COLUMNS": tiles.dense_columns,
        "SPLIT_STEPS": _dense_split_steps(tiles, weight),
        "DTYPE": tl.float16 if is_half else tl.float32,
        "PRECISION": "tf32" if half else "ieee",
        "num_stages": min(tiles.stages, 3),
    }


def order_quants(quants: Tensor, *, columns: int, inputs: int, warps: int) -> Tensor:
    """Quants [width, num_inputs] of 0 … 15 in the order of `matmul_device.unpack_quants`, eight in a word.

    A program has tiles of `columns` outputs and steps of `inputs` inputs. In its dot, thread (row, quad) of a warp
    needs, of each 8 columns of its warp, column `row`, and of each 16 inputs those from 4 · quad on, of which two
    adjacent ones are in one register (PTX ISA, m16n8k16, fragment of B; Triton lets each thread have four adjacent
    inputs). Its 16 adjacent bytes are two pairs of words, each word with two times four inputs.

    Returns:
        [tiles, steps, columns · inputs // 8] int32.
    """
    tiles, steps = quants.shape[0] // columns, quants.shape[1] // inputs
    pairs, words = 2 if inputs == 128 else 1, 2 if inputs >= 64 else 1  # of two each, those that are inputs
    repeats = columns * inputs // (1024 * warps)
    require(repeats > 0, f"tiles of {columns} columns and {inputs} inputs are too small for {warps} warps")
    # The columns of a tile: repeat, column pair, column word, warp, row. The inputs of a step: pair, word, half of a
    # word, quad, odd nibble, high half of a word.
    apart = quants.view(tiles, repeats, 2 // pairs, 2 // words, warps, 8, steps, pairs, words, 2, 4, 2, 2)
    ordered = apart.permute(0, 6, 1, 4, 5, 10, 2, 7, 3, 8, 9, 11, 12)
    ordered = ordered.reshape(tiles, steps, columns * inputs // 8, 2, 2, 2)
    out = torch.zeros(ordered.shape[:3], dtype=torch.int32, device=quants.device)
    for half in range(2):
        for odd in range(2):
            for high in range(2):
                out |= ordered[..., half, odd, high] << (8 * half + 4 * odd + 16 * high)
    return out


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
