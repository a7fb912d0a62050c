"""Triton kernels of matmuls with 4-bit and with unquantized weights.

A row's sums are added in one order, whatever the other rows are. All dots have 16 rows, so that a tile of 64 rows is
computed by the same instructions as one of 16. Tiles and splits have fixed sizes.

4-bit weights are stored in the order in which the tensor cores take them, as in Marlin (Frantar et al. 2024,
arXiv:2408.11743): each thread loads 32 of them as 16 adjacent bytes and multiplies them, and none goes through shared
memory after it was unpacked. `order_quants` in `matmul.py` writes that order.
"""

import triton
import triton.language as tl

from serving.kernels.triton.dot_device import INTERPRETED, dot, narrow


@triton.jit
def load_rows(x_ptr, first_row, columns, num_rows, width, stride, DTYPE: tl.constexpr):
    """16 rows [16, columns] of x; what is outside of it is 0."""
    rows = first_row + tl.arange(0, 16)
    addresses = x_ptr + rows[:, None].to(tl.int64) * stride + columns[None, :]
    inside = (rows < num_rows)[:, None] & (columns < width)[None, :]
    return narrow(tl.load(addresses, mask=inside, other=0.0), DTYPE)


@triton.jit
def store_rows(out_ptr, acc, first_row, columns, num_rows, width, stride):
    """Write acc [16, columns]; what is outside of the output is dropped."""
    rows = first_row + tl.arange(0, 16)
    addresses = out_ptr + rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(addresses, acc, mask=(rows < num_rows)[:, None] & (columns < width)[None, :])


@triton.jit
def number_of(words, shift: tl.constexpr):
    """1024 + q as float16, for the nibble of each word at `shift`."""
    return (((words >> shift) & 15) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def unpack_quants(words, COLUMNS: tl.constexpr, INPUTS: tl.constexpr, WARPS: tl.constexpr):
    """A step's quants [INPUTS, COLUMNS] as float16 numbers 1024 + q.  words: [COLUMNS * INPUTS // 8] int32."""
    # In float16, 1024 is 0x6400, and the last bit of the numbers from 1024 on is worth 1.
    if INTERPRETED:  # the interpreter has no assembler
        a0, b0, a1, b1 = number_of(words, 0), number_of(words, 16), number_of(words, 4), number_of(words, 20)
        a2, b2, a3, b3 = number_of(words, 8), number_of(words, 24), number_of(words, 12), number_of(words, 28)
    else:
        # One lop3 (here x & y | z) makes two numbers; the compiler leaves both in their register.
        a0, b0, a1, b1, a2, b2, a3, b3 = tl.inline_asm_elementwise(
            """{
            .reg .b32 s, t;
            lop3.b32 t, $8, 0x000f000f, 0x64006400, 0xEA;
            mov.b32 {$0, $1}, t;
            shr.u32 s, $8, 4;
            lop3.b32 t, s, 0x000f000f, 0x64006400, 0xEA;
            mov.b32 {$2, $3}, t;
            shr.u32 s, $8, 8;
            lop3.b32 t, s, 0x000f000f, 0x64006400, 0xEA;
            mov.b32 {$4, $5}, t;
            shr.u32 s, $8, 12;
            lop3.b32 t, s, 0x000f000f, 0x64006400, 0xEA;
            mov.b32 {$6, $7}, t;
            }""",
            "=&h,=&h,=&h,=&h,=&h,=&h,=&h,=&h,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    low, high = tl.join(tl.join(a0, b0), tl.join(a2, b2)), tl.join(tl.join(a1, b1), tl.join(a3, b3))
    # The dimensions are those of `order_quants`; the last ones are the high half, the half of a half, the odd nibble.
    REPEATS: tl.constexpr = COLUMNS * INPUTS // (1024 * WARPS)
    PAIRS: tl.constexpr = 2 if INPUTS == 128 else 1  # of the thread's two pairs of words, those that are inputs
    WORDS: tl.constexpr = 2 if INPUTS >= 64 else 1  # of the two words of a pair, those that are inputs
    numbers = tl.reshape(tl.join(low, high), (REPEATS, WARPS, 8, 4, 2 // PAIRS, PAIRS, 2 // WORDS, WORDS, 2, 2, 2))
    return tl.reshape(tl.permute(numbers, (5, 7, 9, 3, 10, 8, 0, 4, 6, 1, 2)), (INPUTS, COLUMNS))


@triton.jit(do_not_specialize=["num_rows"])
def w4a16(
    x_ptr,  # [num_rows, num_inputs] DTYPE
    quants_ptr,  # [tiles, steps, COLUMNS * INPUTS // 8] int32, in the order of unpack_quants
    groups_ptr,  # [groups, tiles * COLUMNS] int32: low half 1024 + zero, high half the scale, both float16
    out_ptr,  # [splits, num_rows, num_outputs] float32
    num_rows,
    num_inputs,
    num_outputs,
    GROUP: tl.constexpr,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WARPS: tl.constexpr,
    SPLIT_STEPS: tl.constexpr,
    DOTS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """out[split] = x · (q − z) · s over a split of the inputs; grid: (row tiles of 16 DOTS, column tiles, splits).

    The scale is applied to the sum over a step, whose inputs share it: so the 4-bit weights are exact in float16.
    """
    first_row, tile, split = tl.program_id(0) * 16 * DOTS, tl.program_id(1), tl.program_id(2)
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    width = tl.num_programs(1) * COLUMNS
    steps = num_inputs // INPUTS
    WORDS: tl.constexpr = COLUMNS * INPUTS // 8
    acc0 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    acc1 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    acc2 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    acc3 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    for step in range(split * SPLIT_STEPS, min((split + 1) * SPLIT_STEPS, steps)):
        group = tl.load(groups_ptr + (step * INPUTS) // GROUP * width + columns)
        zeros = group.to(tl.int16).to(tl.float16, bitcast=True)
        scales = (group >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)[None, :]
        words = tl.load(quants_ptr + (tile * steps + step) * WORDS + tl.arange(0, WORDS))
        weight = (unpack_quants(words, COLUMNS, INPUTS, WARPS) - zeros[None, :]).to(DTYPE)
        inputs = step * INPUTS + tl.arange(0, INPUTS)
        x0 = load_rows(x_ptr, first_row, inputs, num_rows, num_inputs, num_inputs, DTYPE)
        acc0 += dot(x0, weight, "ieee") * scales
        if DOTS > 1:
            x1 = load_rows(x_ptr, first_row + 16, inputs, num_rows, num_inputs, num_inputs, DTYPE)
            acc1 += dot(x1, weight, "ieee") * scales
        if DOTS > 2:
            x2 = load_rows(x_ptr, first_row + 32, inputs, num_rows, num_inputs, num_inputs, DTYPE)
            acc2 += dot(x2, weight, "ieee") * scales
            x3 = load_rows(x_ptr, first_row + 48, inputs, num_rows, num_inputs, num_inputs, DTYPE)
            acc3 += dot(x3, weight, "ieee") * scales
    part_ptr = out_ptr + split.to(tl.int64) * num_rows * num_outputs
    store_rows(part_ptr, acc0, first_row, columns, num_rows, num_outputs, num_outputs)
    if DOTS > 1:
        store_rows(part_ptr, acc1, first_row + 16, columns, num_rows, num_outputs, num_outputs)
    if DOTS > 2:
        store_rows(part_ptr, acc2, first_row + 32, columns, num_rows, num_outputs, num_outputs)
        store_rows(part_ptr, acc3, first_row + 48, columns, num_rows, num_outputs, num_outputs)


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
    DOTS: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """x · weightᵀ over a split of the inputs for 16 DOTS rows of x and the given rows of the weight, where they exist.

    Returns:
        Four sums [16, COLUMNS] float32, of which the first DOTS were computed.
    """
    acc0 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    acc1 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    acc2 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    acc3 = tl.zeros((16, COLUMNS), dtype=tl.float32)
    for step in range(split * SPLIT_STEPS, min((split + 1) * SPLIT_STEPS, tl.cdiv(num_inputs, INPUTS))):
        inputs = step * INPUTS + tl.arange(0, INPUTS)
        addresses = weight_ptr + columns[:, None].to(tl.int64) * num_inputs + inputs[None, :]
        inside = exists[:, None] & (inputs < num_inputs)[None, :]
        weight = tl.trans(tl.load(addresses, mask=inside, other=0.0).to(DTYPE))
        x0 = load_rows(x_ptr, first_row, inputs, num_rows, num_inputs, num_inputs, DTYPE)
        acc0 += dot(x0, weight, PRECISION)
        if DOTS > 1:
            x1 = load_rows(x_ptr, first_row + 16, inputs, num_rows, num_inputs, num_inputs, DTYPE)
            acc1 += dot(x1, weight, PRECISION)
        if DOTS > 2:
            x2 = load_rows(x_ptr, first_row + 32, inputs, num_rows, num_inputs, num_inputs, DTYPE)
            acc2 += dot(x2, weight, PRECISION)
            x3 = load_rows(x_ptr, first_row + 48, inputs, num_rows, num_inputs, num_inputs, DTYPE)
            acc3 += dot(x3, weight, PRECISION)
    return acc0, acc1, acc2, acc3


@triton.jit(do_not_specialize=["num_rows"])
def dense(
    x_ptr,  # [num_rows, num_inputs] float32 or float16
    weight_ptr,  # [num_outputs, num_inputs] any float
    out_ptr,  # [splits, num_rows, num_outputs] float32
    num_rows,
    num_inputs,
    num_outputs,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT_STEPS: tl.constexpr,
    DOTS: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[split] = x · weightᵀ over a split of the inputs; grid: (row tiles of 16 DOTS, column tiles, splits).

    DTYPE holds the weight exactly: float16 its own, float32 all, which PRECISION may round to tf32, exact for bfloat16.
    """
    first_row, tile, split = tl.program_id(0) * 16 * DOTS, tl.program_id(1), tl.program_id(2)
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    acc0, acc1, acc2, acc3 = dense_sums(
        x_ptr,
        first_row,
        num_rows,
        weight_ptr,
        columns,
        columns < num_outputs,
        split,
        num_inputs,
        INPUTS,
        COLUMNS,
        SPLIT_STEPS,
        DOTS,
        DTYPE,
        PRECISION,
    )
    part_ptr = out_ptr + split.to(tl.int64) * num_rows * num_outputs
    store_rows(part_ptr, acc0, first_row, columns, num_rows, num_outputs, num_outputs)
    if DOTS > 1:
        store_rows(part_ptr, acc1, first_row + 16, columns, num_rows, num_outputs, num_outputs)
    if DOTS > 2:
        store_rows(part_ptr, acc2, first_row + 32, columns, num_rows, num_outputs, num_outputs)
        store_rows(part_ptr, acc3, first_row + 48, columns, num_rows, num_outputs, num_outputs)


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
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[split] = one row of x times chosen rows of the weight, with the sums of `dense`; grid: (tiles, splits)."""
    tile, split = tl.program_id(0), tl.program_id(1)
    row_ptr = x_ptr + tl.load(rows_ptr + tile).to(tl.int64) * num_inputs
    places = tl.arange(0, COLUMNS)
    columns = tl.load(columns_ptr + tile * COLUMNS + places)
    # A tile has 16 rows, of which the first exists.
    acc, _, _, _ = dense_sums(
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
        1,
        DTYPE,
        PRECISION,
    )
    part_ptr = out_ptr + (split.to(tl.int64) * tl.num_programs(0) + tile) * COLUMNS
    store_rows(part_ptr, acc, 0, places, 1, COLUMNS, COLUMNS)


@triton.jit
def load_sum(parts_ptr, offsets, parts, stride, inside):
    """The sum of parts, each `stride` numbers after the one before, at some offsets; in their order, 0 outside."""
    acc = tl.load(parts_ptr + offsets, mask=inside, other=0.0)
    for part in range(1, parts):
        acc += tl.load(parts_ptr + tl.cast(part, tl.int64) * stride + offsets, mask=inside, other=0.0)
    return acc


@triton.jit(do_not_specialize=["num_rows", "splits"])
def sum_splits(parts_ptr, out_ptr, num_rows, num_outputs, out_stride, splits, BLOCK: tl.constexpr):
    """out [num_rows, num_outputs] = the sum of parts [splits, …] in their order; grid: (rows, column blocks)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_outputs
    acc = load_sum(parts_ptr + row * num_outputs, columns, splits, num_rows * num_outputs, inside)
    tl.store(out_ptr + row * out_stride + columns, acc, mask=inside)
