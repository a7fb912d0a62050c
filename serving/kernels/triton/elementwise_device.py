"""Triton kernels of norms, SwiGLU, rotary embedding and storing keys and values; a program computes one row."""

import triton
import triton.language as tl


@triton.jit
def add_rms_norm(x_ptr, residual_ptr, weight_ptr, out_ptr, width, eps, HAS_X: tl.constexpr, BLOCK: tl.constexpr):
    """residual += x where there is an x; out = residual / rms(residual) · weight.  All [rows, width] float32."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    start = tl.program_id(0).to(tl.int64) * width
    value = tl.load(residual_ptr + start + columns, mask=inside, other=0.0)
    if HAS_X:
        value += tl.load(x_ptr + start + columns, mask=inside, other=0.0)
        tl.store(residual_ptr + start + columns, value, mask=inside)
    rms = tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    tl.store(out_ptr + start + columns, value / rms * weight, mask=inside)


@triton.jit
def silu_and_mul(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr):
    """out = silu(gate) · up.  gate_up: [rows, 2 width]; out: [rows, width] float32; grid: (rows, blocks)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up_ptr + row * 2 * width + columns, mask=inside, other=0.0)
    up = tl.load(gate_up_ptr + row * 2 * width + width + columns, mask=inside, other=0.0)
    small = tl.exp(-tl.abs(gate))  # never overflows
    sigmoid = tl.where(gate >= 0.0, 1.0, small) / (1.0 + small)
    tl.store(out_ptr + row * width + columns, gate * sigmoid * up, mask=inside)


@triton.jit
def adjust_qkv(
    qkv_ptr,  # [rows, (HEADS + 2 KV_HEADS) · DIM] float32, changed in place
    bias_ptr,  # one row of qkv
    query_norm_ptr,  # [DIM]
    key_norm_ptr,
    eps,
    HAS_BIAS: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ALL_HEADS: tl.constexpr,  # a power of two, at least HEADS + 2 KV_HEADS
    BLOCK: tl.constexpr,  # a power of two, at least DIM
):
    """Add the bias, then normalize the heads of queries and keys."""
    head, column = tl.arange(0, ALL_HEADS)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (head < HEADS + 2 * KV_HEADS) & (column < DIM)
    offsets = head * DIM + column
    row_ptr = qkv_ptr + tl.program_id(0).to(tl.int64) * (HEADS + 2 * KV_HEADS) * DIM
    value = tl.load(row_ptr + offsets, mask=inside, other=0.0)
    if HAS_BIAS:
        value += tl.load(bias_ptr + offsets, mask=inside, other=0.0)
    if HAS_NORMS:
        rms = tl.sqrt(tl.sum(value * value, axis=1) / DIM + eps)[:, None]
        query = tl.load(query_norm_ptr + column, mask=column < DIM, other=0.0)
        key = tl.load(key_norm_ptr + column, mask=column < DIM, other=0.0)
        normed = value / rms * tl.where(head < HEADS, query, key)
        value = tl.where(head < HEADS + KV_HEADS, normed, value)
    tl.store(row_ptr + offsets, value, mask=inside)


@triton.jit
def rotary_and_store_kv(
    qkv_ptr,  # [rows, (HEADS + 2 KV_HEADS) · DIM] float32; queries are changed in place
    cos_ptr,  # [rows, DIM // 2] float32
    sin_ptr,
    cache_ptr,  # [blocks, 2, KV_HEADS, block_size, DIM]
    slots_ptr,  # [rows] int32; negative: padding, which is stored nowhere
    block_size,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ALL_HEADS: tl.constexpr,  # a power of two, at least HEADS + 2 KV_HEADS
    BLOCK: tl.constexpr,  # a power of two, at least DIM // 2
):
    """Rotate queries and keys; write keys and values to their slots."""
    row = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, ALL_HEADS)[:, None], tl.arange(0, BLOCK)[None, :]
    half = DIM // 2
    inside = (head < HEADS + 2 * KV_HEADS) & (column < half)
    row_ptr = qkv_ptr + row * (HEADS + 2 * KV_HEADS) * DIM + head * DIM + column
    first = tl.load(row_ptr, mask=inside, other=0.0)
    second = tl.load(row_ptr + half, mask=inside, other=0.0)
    cos = tl.load(cos_ptr + row * half + column, mask=column < half, other=0.0)
    sin = tl.load(sin_ptr + row * half + column, mask=column < half, other=0.0)
    turns = head < HEADS + KV_HEADS
    rotated = tl.where(turns, first * cos - second * sin, first)
    rotated_second = tl.where(turns, second * cos + first * sin, second)
    is_query = inside & (head < HEADS)
    tl.store(row_ptr, rotated, mask=is_query)
    tl.store(row_ptr + half, rotated_second, mask=is_query)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    # The heads after the queries' are the keys', then the values', as in a block of the cache.
    stored = (slot // block_size) * 2 * KV_HEADS + head - HEADS
    stored_ptr = cache_ptr + (stored * block_size + slot % block_size) * DIM + column
    is_stored = inside & (head >= HEADS) & (slot >= 0)
    tl.store(stored_ptr, rotated.to(cache_ptr.dtype.element_ty), mask=is_stored)
    tl.store(stored_ptr + half, rotated_second.to(cache_ptr.dtype.element_ty), mask=is_stored)
