"""Triton kernels of norms, SwiGLU, rotary embedding and storing keys and values.

Their inputs may be the parts [parts, …] of a matmul, which they add up first. Results that go into a matmul have its
dtype.
"""

import triton
import triton.language as tl

from serving.kernels.triton.dot_device import narrow
from serving.kernels.triton.matmul_device import load_sum


@triton.jit(do_not_specialize=["num_rows", "parts"])
def add_rms_norm(
    x_ptr,  # [parts, num_rows, width] float32
    residual_ptr,  # [num_rows, width] float32
    weight_ptr,  # [width] float32
    out_ptr,  # [num_rows, width]
    num_rows,
    width,
    parts,
    eps,
    HAS_X: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """residual += x where there is an x; out = residual / rms(residual) · weight; grid: (rows)."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    start = tl.program_id(0).to(tl.int64) * width
    value = tl.load(residual_ptr + start + columns, mask=inside, other=0.0)
    if HAS_X:
        value += load_sum(x_ptr + start, columns, parts, num_rows * width, inside)
        tl.store(residual_ptr + start + columns, value, mask=inside)
    rms = tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    tl.store(out_ptr + start + columns, narrow(value / rms * weight, out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "parts"])
def silu_and_mul(gate_up_ptr, out_ptr, num_rows, width, parts, BLOCK: tl.constexpr):
    """out = silu(gate) · up.  gate_up: [parts, num_rows, 2 width] float32; out: [num_rows, width].

    grid: (rows, blocks)
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    row_ptr = gate_up_ptr + row * 2 * width
    gate = load_sum(row_ptr, columns, parts, num_rows * 2 * width, inside)
    up = load_sum(row_ptr + width, columns, parts, num_rows * 2 * width, inside)
    small = tl.exp(-tl.abs(gate))  # never overflows
    sigmoid = tl.where(gate >= 0.0, 1.0, small) / (1.0 + small)
    tl.store(out_ptr + row * width + columns, narrow(gate * sigmoid * up, out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "parts"])
def rotary_and_store_kv(
    qkv_ptr,  # [parts, num_rows, (HEADS + 2 KV_HEADS) · DIM] float32; the first part's queries get the result
    bias_ptr,  # one row of qkv
    query_norm_ptr,  # [DIM]
    key_norm_ptr,
    cos_ptr,  # [num_rows, DIM // 2] float32
    sin_ptr,
    cache_ptr,  # [blocks, 2, KV_HEADS, block_size, DIM]
    slots_ptr,  # [num_rows] int32; negative: padding, which is stored nowhere
    num_rows,
    parts,
    block_size,
    eps,  # of the norms
    HAS_BIAS: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SOME_HEADS: tl.constexpr,  # heads of a program, a power of two
    BLOCK: tl.constexpr,  # a power of two, at least DIM // 2
):
    """Add the bias, normalize and rotate queries and keys; write keys and values to their slots.

    grid: (rows, blocks of SOME_HEADS heads)
    """
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * SOME_HEADS + tl.arange(0, SOME_HEADS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    half = DIM // 2
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    inside = (head < HEADS + 2 * KV_HEADS) & (column < half)
    offsets = head * DIM + column
    row_ptr = qkv_ptr + row * width
    first = load_sum(row_ptr, offsets, parts, num_rows * width, inside)
    second = load_sum(row_ptr + half, offsets, parts, num_rows * width, inside)
    if HAS_BIAS:
        first += tl.load(bias_ptr + offsets, mask=inside, other=0.0)
        second += tl.load(bias_ptr + half + offsets, mask=inside, other=0.0)
    if HAS_NORMS:
        rms = tl.sqrt((tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / DIM + eps)[:, None]
        is_query = head < HEADS
        query = tl.load(query_norm_ptr + column, mask=column < half, other=0.0)
        key = tl.load(key_norm_ptr + column, mask=column < half, other=0.0)
        second_query = tl.load(query_norm_ptr + half + column, mask=column < half, other=0.0)
        second_key = tl.load(key_norm_ptr + half + column, mask=column < half, other=0.0)
        is_normed = head < HEADS + KV_HEADS
        first = tl.where(is_normed, first / rms * tl.where(is_query, query, key), first)
        second = tl.where(is_normed, second / rms * tl.where(is_query, second_query, second_key), second)
    cos = tl.load(cos_ptr + row * half + column, mask=column < half, other=0.0)
    sin = tl.load(sin_ptr + row * half + column, mask=column < half, other=0.0)
    turns = head < HEADS + KV_HEADS
    rotated = tl.where(turns, first * cos - second * sin, first)
    rotated_second = tl.where(turns, second * cos + first * sin, second)
    is_query = inside & (head < HEADS)
    tl.store(row_ptr + offsets, rotated, mask=is_query)
    tl.store(row_ptr + half + offsets, rotated_second, mask=is_query)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    # The heads after the queries' are the keys', then the values', as in a block of the cache.
    stored = (slot // block_size) * 2 * KV_HEADS + head - HEADS
    stored_ptr = cache_ptr + (stored * block_size + slot % block_size) * DIM + column
    is_stored = inside & (head >= HEADS) & (slot >= 0)
    tl.store(stored_ptr, narrow(rotated, cache_ptr.dtype.element_ty), mask=is_stored)
    tl.store(stored_ptr + half, narrow(rotated_second, cache_ptr.dtype.element_ty), mask=is_stored)
