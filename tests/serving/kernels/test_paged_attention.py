"""Attention over scattered blocks is right, and gives the same bits for any chunks and batch."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lab.gpu.kernel_operands import int32, poisoned, qkv_width, random_batch
from serving.kernels.base import Activations, AttentionShape
from serving.kernels.cpu import CpuKernels
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels
from serving.kernels.shape_checks import KernelArgumentError

REFERENCE = ReferenceKernels()
SHAPES = {
    "default": AttentionShape(9, 3, 64, None),
    "window": AttentionShape(8, 2, 32, 21),
    "one head for all": AttentionShape(70, 1, 8, None),
    "a head for each": AttentionShape(4, 4, 24, 5),
    "wide": AttentionShape(4, 2, 96, None),
}
# Positions computed: whole prompts, chunks, single tokens; around blocks, vectors and 128
SPANS = [(0, 1), (0, 17), (126, 127), (127, 128), (128, 129), (100, 129), (5, 13), (299, 300)]


def store(kernels, cache, slots, keys_and_values, shape):
    """Store keys and values, [T, 2 · kv_heads · head_dim], in slots without rotating them."""
    queries = torch.zeros(len(slots), shape.num_heads * shape.head_dim)
    angles = torch.zeros(len(slots), shape.head_dim // 2)
    qkv = torch.cat([queries, keys_and_values], dim=1)
    kernels.rotary_and_store_kv(qkv, angles.cos(), angles.sin(), cache, int32(slots), shape)


def filled_cache(kernels, shape, blocks, block_size):
    """The same keys and values for any kernels."""
    cache = kernels.allocate_kv_cache(blocks, block_size, shape.num_kv_heads, shape.head_dim)
    width, slots = 2 * shape.num_kv_heads * shape.head_dim, range(blocks * block_size)
    content = torch.randn(len(slots), width, generator=torch.Generator().manual_seed(3))
    store(kernels, cache, slots, content, shape)
    return cache


def attend(kernels, qkv, cache, batch, shape):
    out = poisoned(qkv.shape[0], shape.num_heads * shape.head_dim)
    kernels.paged_attention(qkv, cache, batch, shape, out)
    return out


@pytest.mark.parametrize("block_size", [16, 32, 7, 1])
@pytest.mark.parametrize("name", SHAPES)
def test_a_ragged_batch_equals_torch(cpu, name, block_size):
    shape = SHAPES[name]
    blocks = sum(-(-stop // block_size) for _, stop in SPANS) + 1
    batch = random_batch(SPANS, block_size, blocks)
    cache = filled_cache(cpu, shape, blocks, block_size)
    qkv = torch.randn(sum(stop - start for start, stop in SPANS), qkv_width(shape))
    expected = attend(REFERENCE, qkv, filled_cache(REFERENCE, shape, blocks, block_size), batch, shape)
    # Queries, keys, values and weights rounded to 8 bits cost some 0.4 % of the largest value
    error = 3e-2 if cache.dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(attend(cpu, qkv, cache, batch, shape), expected, rtol=error, atol=error)


@pytest.mark.parametrize("name", SHAPES)
def test_chunks_batch_and_threads_do_not_change_a_bit(library_path, activations, name):
    shape, size, length = SHAPES[name], 16, 70
    kernels = CpuKernels(CpuLibrary(library_path, 1), activations)
    cache = filled_cache(kernels, shape, 12, size)
    whole = random_batch([(0, length)], size, 10)
    qkv = torch.randn(length, qkv_width(shape))
    expected = attend(kernels, qkv, cache, whole, shape)
    for threads, step in ((2, 1), (3, 7), (2, 33)):
        others = CpuKernels(CpuLibrary(library_path, threads), activations)
        for start in range(0, length, step):
            stop = min(start + step, length)
            batch = dataclasses.replace(
                random_batch([(start, stop), (0, 3)], size, 12),
                block_tables=torch.cat([whole.block_tables, whole.block_tables]),
            )
            rows = torch.cat([qkv[start:stop], torch.randn(3, qkv.shape[1])])
            assert torch.equal(attend(others, rows, cache, batch, shape)[: stop - start], expected[start:stop])


def test_blocks_that_no_request_holds_are_never_read(cpu):
    """Cache memory is not initialised, so it may hold NaN."""
    shape = SHAPES["window"]
    batch = random_batch([(40, 45)], 16, 9)
    cache = filled_cache(cpu, shape, 9, 16)
    qkv = torch.randn(5, qkv_width(shape))
    expected = attend(cpu, qkv, cache, batch, shape)
    held = {int(block) * 16 + at for block in batch.block_tables[0] for at in range(16)}
    unwritten = [int(batch.block_tables[0, 2]) * 16 + at for at in (13, 14, 15)]
    slots = sorted(set(range(9 * 16)) - held) + unwritten
    store(cpu, cache, slots, torch.full((len(slots), 2 * 2 * 32), float("nan")), shape)
    assert torch.equal(attend(cpu, qkv, cache, batch, shape), expected)


@pytest.mark.parametrize("height", [1e4, 1e8])
def test_a_very_large_score_does_not_overflow(cpu, height):
    shape = SHAPES["default"]
    cache, other = filled_cache(cpu, shape, 4, 16), filled_cache(REFERENCE, shape, 4, 16)
    batch = random_batch([(60, 64)], 16, 4)
    qkv = torch.randn(4, qkv_width(shape)) * height
    found = attend(cpu, qkv, cache, batch, shape)
    if cache.dtype is torch.bfloat16:  # rounding decides which of two large scores is larger
        assert torch.isfinite(found).all()
        return
    expected = attend(REFERENCE, qkv, other, batch, shape)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_tables", [[0, 99]]),
        ("block_tables", [[0, -1]]),
        ("context_lens", [33]),
        ("context_lens", [1]),
        ("query_start", [0, 3]),
        ("query_start", [1, 2]),
    ],
)
def test_batches_with_indices_out_of_range_are_refused(cpu_float32, field, value):
    shape = SHAPES["default"]
    cache = filled_cache(cpu_float32, shape, 4, 16)
    batch = dataclasses.replace(random_batch([(18, 20)], 16, 4), **{field: int32(value)})
    out = poisoned(2, 9 * 64)
    with pytest.raises(KernelArgumentError, match="out of range"):
        cpu_float32.paged_attention(torch.randn(2, qkv_width(shape)), cache, batch, shape, out)
    assert out.isnan().all()


@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (64, 7), (24, 16)])
def test_caches_are_bfloat16_where_attention_is_and_others_are_refused(
    cpu, library_path, activations, head_dim, block_size
):
    cache = cpu.allocate_kv_cache(4, block_size, 3, head_dim)
    rounding = [Activations.BFLOAT16] + [Activations.INT8] * CpuLibrary(library_path, 1).has_dots
    in_tiles = activations in rounding and head_dim % 32 == 0 and block_size % 16 == 0
    assert cache.dtype == (torch.bfloat16 if in_tiles else torch.float32)
    other = cache.to(torch.float32 if in_tiles else torch.bfloat16)
    shape, batch = AttentionShape(9, 3, head_dim, None), random_batch([(3, 5)], block_size, 4)
    with pytest.raises(KernelArgumentError, match="kv_cache has dtype"):
        attend(cpu, torch.randn(2, qkv_width(shape)), other, batch, shape)
