"""Triton kernels of matmuls with 4-bit and with unquantized weights.

A row's sums are added in one order, whatever the other rows are. All dots have 16 rows, so that a tile of 64 rows is
computed by the same instructions as one of 16. Tiles and splits have fixed sizes.
"""

import triton
import triton.language as tl

from serving.kernels.triton.dot_device import dot


@triton.jit
def load_rows(x_ptr, first_row, columns, num_rows, width, stride, DTYPE: tl.constexpr):
    """16 rows [16, columns] of x; what is outside of it is 0."""
    rows = first_row + tl.arange(0, 16)
    addresses = x_ptr + rows[:, None].to(tl.int64) * stride + columns[None, :]
    inside = (rows < num_rows)[:, None] & (columns < width)[None, :]
    return tl.load(addresses, mask=inside, other=0.0).to(DTYPE)


@triton.jit
def store_rows(out_ptr, acc, first_row, columns, num_rows, width, stride):
    """Write acc [16, columns]; what is outside of the output is dropped."""
    rows = first_row + tl.arange(0, 16)
    addresses = out_ptr + rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(addresses, acc, mask=(rows < num_rows)[:, None] & (columns < width)[None, :])


@triton.jit
def load_quants(quants_ptr, tile, COLUMNS: tl.constexpr, INPUTS: tl.constexpr):
    """A tile of quants [COLUMNS, INPUTS] int32 of 0 … 15; nibble i of word j is input 8 j + i."""
    # Loaded as a vector, so that each thread loads 16 adjacent bytes.
    words: tl.constexpr = COLUMNS * INPUTS // 8
    packed = tl.load(quants_ptr + tile * words + tl.arange(0, words))
    packed = tl.reshape(packed, (COLUMNS, INPUTS // 8))
    shifts = 4 * tl.arange(0, 8)
    nibbles = (packed[:, :, None] >> shifts[None, None, :]) & 15
    return tl.reshape(nibbles, (COLUMNS, INPUTS))


@triton.jit(do_not_specialize=["num_rows"])
def w4a16(
    x_ptr,  # [num_rows, num_inputs] float32
    quants_ptr,  # [tiles, steps, COLUMNS, INPUTS // 8] int32
    zeros_ptr,  # [groups, tiles * COLUMNS] uint8
    scales_ptr,  # [groups, tiles * COLUMNS] float16
    out_ptr,  # [splits, num_rows, num_outputs] float32
    num_rows,
    num_inputs,
    num_outputs,
    GROUP: tl.constexpr,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT_STEPS: tl.constexpr,
    DOTS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """out[split] = x · (q − z) · s over a split of the inputs; grid: (column tiles, splits, row tiles of 16 DOTS).

    The scale is applied to the sum over a step, whose inputs share it: so the 4-bit weights are exact in float16.
    """
    tile, split, first_row = tl.program_id(0), tl.program_id(1), tl.program_id(2) * 16 * DOTS
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    width = tl.num_programs(0) * COLUMNS
    steps = num_inputs // INPUTS
    acc0 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    acc1 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    acc2 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    acc3 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    for step in range(split * SPLIT_STEPS, min((split + 1) * SPLIT_STEPS, steps)):
        group = (step * INPUTS) // GROUP
        zeros = tl.load(zeros_ptr + group * width + columns).to(tl.int32)
        scales = tl.load(scales_ptr + group * width + columns).to(tl.float32)[None, :]
        quants = load_quants(quants_ptr, tile * steps + step, COLUMNS, INPUTS)
        weight = tl.trans((quants - zeros[:, None]).to(DTYPE))
        inputs = step * INPUTS + tl.arange(0, INPUTS)
        x0 = load_rows(x_ptr, first_row, inputs, num_rows, num_inputs, num_inputs, DTYPE)
        acc0 += dot(x0, weight, "ieee") * scales
        if DOTS > 1:
            x1 = load_rows(x_ptr, first_row + 16, inputs, num_rows, num_inputs, num_inputs, DTYPE)
            acc1 += dot(x1, weight, "ieee") * scales
            x2 = load_rows(x_ptr, first_row + 32, inputs, num_rows, num_inputs, num_inputs, DTYPE)
            acc2 += dot(x2, weight, "ieee") * scales
            x3 = load_rows(x_ptr, first_row + 48, inputs, num_rows, num_inputs, num_inputs, DTYPE)
            acc3 += dot(x3, weight, "ieee") * scales
    part_ptr = out_ptr + split.to(tl.int64) * num_rows * num_outputs
    store_rows(part_ptr, acc0, first_row, columns, num_rows, num_outputs, num_outputs)
    if DOTS > 1:
        store_rows(part_ptr, acc1, first_row + 16, columns, num_rows, num_outputs, num_outputs)
        store_rows(part_ptr, acc2, first_row + 32, columns, num_rows, num_outputs, num_outputs)
        store_rows(part_ptr, acc3, first_row + 48, columns, num_rows, num_outputs, num_outputs)


@triton.jit
def dequantize(
    quants_ptr,  # as in w4a16
    zeros_ptr,
    scales_ptr,
    out_ptr,  # [num_outputs, num_inputs] float16
    num_inputs,
    num_outputs,
    GROUP: tl.constexpr,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out = (q − z) · s, transposed; grid: (column tiles, steps)."""
    tile, step = tl.program_id(0), tl.program_id(1)
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    first = (step * INPUTS) // GROUP * tl.num_programs(0) * COLUMNS
    zeros = tl.load(zeros_ptr + first + columns).to(tl.int32)
    scales = tl.load(scales_ptr + first + columns).to(tl.float32)
    quants = load_quants(quants_ptr, tile * tl.num_programs(1) + step, COLUMNS, INPUTS)
    weight = (quants - zeros[:, None]).to(tl.float32) * scales[:, None]
    inputs = step * INPUTS + tl.arange(0, INPUTS)
    addresses = out_ptr + columns[:, None].to(tl.int64) * num_inputs + inputs[None, :]
    tl.store(addresses, weight.to(tl.float16), mask=(columns < num_outputs)[:, None])


@triton.jit
def dense_sums(
    x_ptr,
    first_row,
    num_rows,
    weight_ptr,
    columns,
    exists,
    split,
    num_inputs,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT_STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """x · weightᵀ over a split of the inputs for 16 rows of x and the given rows of the weight, where they exist."""
    acc = tl.zeros((16, COLUMNS), dtype=tl.float32)
    for step in range(split * SPLIT_STEPS, min((split + 1) * SPLIT_STEPS, tl.cdiv(num_inputs, INPUTS))):
        inputs = step * INPUTS + tl.arange(0, INPUTS)
        addresses = weight_ptr + columns[:, None].to(tl.int64) * num_inputs + inputs[None, :]
        inside = exists[:, None] & (inputs < num_inputs)[None, :]
        weight = tl.load(addresses, mask=inside, other=0.0).to(tl.float32)
        x = load_rows(x_ptr, first_row, inputs, num_rows, num_inputs, num_inputs, tl.float32)
        acc += dot(x, tl.trans(weight), PRECISION)
    return acc


@triton.jit(do_not_specialize=["num_rows"])
def dense(
    x_ptr,  # [num_rows, num_inputs] float32
    weight_ptr,  # [num_outputs, num_inputs] any float
    out_ptr,  # [splits, num_rows, num_outputs] float32
    num_rows,
    num_inputs,
    num_outputs,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT_STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[split] = x · weightᵀ over a split of the inputs; grid: (column tiles, splits, row tiles of 16).

    float16 and bfloat16 are exact in both float32 and tf32, to which PRECISION rounds.
    """
    tile, split, first_row = tl.program_id(0), tl.program_id(1), tl.program_id(2) * 16
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    exists = columns < num_outputs
    acc = dense_sums(
        x_ptr,
        first_row,
        num_rows,
        weight_ptr,
        columns,
        exists,
        split,
        num_inputs,
        INPUTS,
        COLUMNS,
        SPLIT_STEPS,
        PRECISION,
    )
    part_ptr = out_ptr + split.to(tl.int64) * num_rows * num_outputs
    store_rows(part_ptr, acc, first_row, columns, num_rows, num_outputs, num_outputs)


@triton.jit
def chosen(
    x_ptr,  # [rows, num_inputs] float32
    weight_ptr,  # [outputs, num_inputs] any float
    columns_ptr,  # [tiles, COLUMNS] int32: rows of the weight; negative: none
    rows_ptr,  # [tiles] int32: the row of x
    out_ptr,  # [splits, tiles, COLUMNS] float32
    num_inputs,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT_STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[split] = one row of x times chosen rows of the weight, with the sums of `dense`; grid: (tiles, splits)."""
    tile, split = tl.program_id(0), tl.program_id(1)
    row_ptr = x_ptr + tl.load(rows_ptr + tile).to(tl.int64) * num_inputs
    places = tl.arange(0, COLUMNS)
    columns = tl.load(columns_ptr + tile * COLUMNS + places)
    # A tile has 16 rows, of which the first exists.
    acc = dense_sums(
        row_ptr,
        0,
        1,
        weight_ptr,
        columns,
        columns >= 0,
        split,
        num_inputs,
        INPUTS,
        COLUMNS,
        SPLIT_STEPS,
        PRECISION,
    )
    part_ptr = out_ptr + (split.to(tl.int64) * tl.num_programs(0) + tile) * COLUMNS
    store_rows(part_ptr, acc, 0, places, 1, COLUMNS, COLUMNS)


@triton.jit(do_not_specialize=["num_rows", "splits"])
def sum_splits(parts_ptr, out_ptr, num_rows, num_outputs, out_stride, splits, BLOCK: tl.constexpr):
    """out [num_rows, num_outputs] = the sum of parts [splits, …] in their order; grid: (rows, column blocks)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_outputs
    acc = tl.load(parts_ptr + row * num_outputs + columns, mask=inside, other=0.0)
    for split in range(1, splits):
        part_ptr = parts_ptr + (split * num_rows + row) * num_outputs
        acc += tl.load(part_ptr + columns, mask=inside, other=0.0)
    tl.store(out_ptr + row * out_stride + columns, acc, mask=inside)
