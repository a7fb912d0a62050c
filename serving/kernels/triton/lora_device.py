"""Triton kernels of low-rank adapters, different ones for different rows, as in Punica (Chen et al. 2023).

A tile has up to 16 rows with the same adapter. Rows without one are in no tile, so they cost nothing. A row's sums have
one order, whatever the other rows are and whatever ranks their adapters have.

Both kernels find a tile's adapter by addresses:

    tiles  [tiles, 3] int64: first row, number of rows, address of the adapter's table
    table  [layers · 7, 5] int64: addresses of down and up, rank, outputs, bits of the scaling as float32

down is [rank, inputs], up is [rank, outputs]; their rows are padded with zeros to multiples of 16 numbers.
"""

import triton
import triton.language as tl

from serving.kernels.triton.dot_device import dot
from serving.kernels.triton.matmul_device import load_rows, store_rows


@triton.jit
def load_tile(tiles_ptr, tile, place):
    """First row of a tile, the row after its last one, and where the table has the adapter of a projection."""
    first = tl.load(tiles_ptr + tile * 3).to(tl.int32)
    stop = first + tl.load(tiles_ptr + tile * 3 + 1).to(tl.int32)
    table_ptr = tl.load(tiles_ptr + tile * 3 + 2).to(tl.pointer_type(tl.int64))
    return first, stop, table_ptr + place * 5


@triton.jit
def load_matrix(address_ptr, ranks, rank, columns, width, TYPE: tl.constexpr):
    """Some rows and columns of down or up as float32; what is outside of it is 0."""
    # The compiler has to be told that addresses are multiples of 16 bytes, to load so many at a time.
    matrix_ptr = tl.multiple_of(tl.load(address_ptr).to(tl.pointer_type(TYPE)), 16)
    stride = (width + 15) // 16 * 16
    inside = (ranks < rank)[:, None] & (columns < stride)[None, :]
    return tl.load(matrix_ptr + ranks[:, None] * stride + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows", "place"])
def shrink(
    x_ptr,  # [num_rows, num_inputs] float32 or float16
    tiles_ptr,
    between_ptr,  # [splits, num_rows, PARTS, num_ranks] float32
    num_rows,
    num_inputs,
    num_ranks,  # a multiple of 16
    place,  # of the first projection in the table
    PARTS: tl.constexpr,  # projections that share the input
    INPUTS: tl.constexpr,
    SPLIT_STEPS: tl.constexpr,
    TYPE: tl.constexpr,  # of the adapters
    PRECISION: tl.constexpr,
):
    """between[split] = x · downᵀ over a split of the inputs; grid: (tiles, splits, PARTS · blocks of 16 ranks)."""
    split, part, first_rank = tl.program_id(1), tl.program_id(2) % PARTS, tl.program_id(2) // PARTS * 16
    first, stop, part_ptr = load_tile(tiles_ptr, tl.program_id(0), place + part)
    rank = tl.load(part_ptr + 2).to(tl.int32)
    if first_rank >= rank:
        return
    ranks = first_rank + tl.arange(0, 16)
    acc = tl.zeros((16, 16), dtype=tl.float32)
    for step in range(split * SPLIT_STEPS, min((split + 1) * SPLIT_STEPS, tl.cdiv(num_inputs, INPUTS))):
        inputs = step * INPUTS + tl.arange(0, INPUTS)
        x = load_rows(x_ptr, first, inputs, stop, num_inputs, num_inputs, tl.float32)
        down = load_matrix(part_ptr, ranks, rank, inputs, num_inputs, TYPE)
        acc += dot(x, tl.trans(down), PRECISION)
    out_ptr = between_ptr + (split.to(tl.int64) * num_rows * PARTS + part) * num_ranks
    store_rows(out_ptr, acc, first, ranks, stop, num_ranks, PARTS * num_ranks)


@triton.jit(do_not_specialize=["num_rows", "place", "splits"])
def expand(
    between_ptr,  # as in shrink
    tiles_ptr,
    out_ptr,  # [num_rows, num_outputs] float32, changed in place
    num_rows,
    num_outputs,
    num_ranks,
    place,
    splits,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out += scaling · between · up; grid: (tiles, column tiles of the widest projection, PARTS)."""
    part, first_column = tl.program_id(2), tl.program_id(1) * COLUMNS
    first, stop, part_ptr = load_tile(tiles_ptr, tl.program_id(0), place + part)
    rank, width = tl.load(part_ptr + 2).to(tl.int32), tl.load(part_ptr + 3).to(tl.int32)
    if (rank == 0) | (first_column >= width):
        return
    start = 0  # the projection's first column of the output
    for before in range(1, part + 1):
        start += tl.load(part_ptr - before * 5 + 3).to(tl.int32)
    scaling = tl.load(part_ptr + 4).to(tl.int32).to(tl.float32, bitcast=True)
    columns = first_column + tl.arange(0, COLUMNS)
    acc = tl.zeros((16, COLUMNS), dtype=tl.float32)
    for first_rank in range(0, rank, 16):
        ranks = first_rank + tl.arange(0, 16)
        between = tl.zeros((16, 16), dtype=tl.float32)
        for split in range(splits):
            sums_ptr = between_ptr + (tl.cast(split, tl.int64) * num_rows * PARTS + part) * num_ranks
            between += load_rows(sums_ptr, first, ranks, stop, num_ranks, PARTS * num_ranks, tl.float32)
        acc += dot(between * scaling, load_matrix(part_ptr + 1, ranks, rank, columns, width, TYPE), PRECISION)
    acc += load_rows(out_ptr + start, first, columns, stop, width, num_outputs, tl.float32)
    store_rows(out_ptr + start, acc, first, columns, stop, width, num_outputs)
