"""Triton's attention over scattered blocks is right, and gives the same bits for any chunks and batch."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from lab.gpu.kernel_operands import int32, poisoned, qkv_width, random_batch
from serving.kernels.base import AttentionShape
from serving.kernels.reference import ReferenceKernels
from serving.kernels.shape_checks import KernelArgumentError
from serving.kernels.triton import tiles
from tests.serving.kernels.triton.placing import DEVICE, ON_THE_GPU

pytestmark = ON_THE_GPU

REFERENCE = ReferenceKernels(DEVICE)
SHAPES = {
    "three heads share": AttentionShape(6, 2, 32, None),
    "window": AttentionShape(4, 2, 24, 21),
    "one head for all": AttentionShape(17, 1, 8, None),
    "a head for each": AttentionShape(2, 2, 16, 5),
}
# Positions computed: whole prompts, chunks, single tokens; around steps of 16 keys and splits of 64
SPANS = [(0, 1), (0, 17), (63, 64), (63, 66), (128, 129)]


def store(kernels, cache, slots, keys_and_values, shape):
    """Store keys and values, [T, 2 · kv_heads · head_dim], in slots without rotating them."""
    queries = torch.zeros(len(slots), shape.num_heads * shape.head_dim)
    angles = torch.zeros(len(slots), shape.head_dim // 2)
    qkv = torch.cat([queries, keys_and_values], dim=1)
    kernels.rotary_and_store_kv(qkv, angles.cos(), angles.sin(), cache, int32(slots), shape)


def filled_caches(kernels, shape, blocks, block_size):
    """Caches of the kernels and of the reference with the same keys and values; the latter float64."""
    content = torch.randn(blocks * block_size, 2 * shape.num_kv_heads * shape.head_dim).half().float()
    caches = []
    for each in (kernels, REFERENCE):
        cache = each.allocate_kv_cache(blocks, block_size, shape.num_kv_heads, shape.head_dim)
        store(each, cache, list(range(blocks * block_size)), content, shape)
        caches.append(cache)
    return caches[0], caches[1].double()


def attend(kernels, qkv, cache, batch, shape):
    dtype = qkv.dtype if qkv.dtype is torch.float64 else kernels.activation_dtype
    out = poisoned(qkv.shape[0], shape.num_heads * shape.head_dim).to(dtype)
    kernels.paged_attention(qkv, cache, batch, shape, out)
    return out


def random_queries(rows, shape):
    return torch.randn(rows, qkv_width(shape)).half().float()


@pytest.mark.parametrize(("name", "block_size"), zip(SHAPES, (16, 7, 32, 1), strict=True))
def test_a_ragged_batch_equals_torch_in_float64(kernels, half, name, block_size):
    shape = SHAPES[name]
    blocks = sum(-(-stop // block_size) for _, stop in SPANS) + 1
    batch = random_batch(SPANS, block_size, blocks)
    cache, exact_cache = filled_caches(kernels, shape, blocks, block_size)
    qkv = random_queries(sum(stop - start for start, stop in SPANS), shape)
    expected = attend(REFERENCE, qkv.double(), exact_cache, batch, shape)
    error = 2e-3 if half else 2e-6
    torch.testing.assert_close(attend(kernels, qkv, cache, batch, shape).double(), expected, rtol=error, atol=error)


def test_chunks_and_batch_do_not_change_a_bit(kernels):
    shape, size = SHAPES["window"], 16
    cache, _ = filled_caches(kernels, shape, 12, size)
    whole = random_batch([(40, 70)], size, 10)
    qkv = random_queries(30, shape)
    expected = attend(kernels, qkv, cache, whole, shape)
    tables = torch.cat([whole.block_tables, whole.block_tables])
    for start, stop in ((43, 50), (62, 66), (69, 70)):
        for beside_first in (False, True):
            spans = [(0, 3), (start, stop)] if beside_first else [(start, stop)]
            batch = dataclasses.replace(random_batch(spans, size, 12), block_tables=tables[: len(spans)])
            mine = qkv[start - 40 : stop - 40]
            rows = torch.cat([random_queries(3, shape), mine]) if beside_first else mine
            found = attend(kernels, rows, cache, batch, shape)[start - stop :]
            assert torch.equal(found, expected[start - 40 : stop - 40]), (start, stop, beside_first)


def test_several_launches_give_the_bits_of_one(kernels, monkeypatch):
    """Where the parts of all tiles would take too much memory."""
    from serving.kernels.triton import attention

    shape, batch = SHAPES["window"], random_batch(SPANS[:4], 16, 20)
    cache, _ = filled_caches(kernels, shape, 20, 16)
    qkv = random_queries(22, shape)
    expected = attend(kernels, qkv, cache, batch, shape)
    monkeypatch.setattr(attention, "MAX_PART_BYTES", 1)
    assert torch.equal(attend(kernels, qkv, cache, batch, shape), expected)


def test_blocks_that_no_request_holds_are_never_read(kernels):
    """Cache memory is not initialised, so it may hold NaN."""
    shape = SHAPES["window"]
    batch = random_batch([(40, 45)], 16, 9)
    cache, _ = filled_caches(kernels, shape, 9, 16)
    qkv = random_queries(5, shape)
    expected = attend(kernels, qkv, cache, batch, shape)
    held = {int(block) * 16 + at for block in batch.block_tables[0] for at in range(16)}
    unwritten = [int(batch.block_tables[0, 2]) * 16 + at for at in (13, 14, 15)]
    slots = sorted(set(range(9 * 16)) - held) + unwritten
    store(kernels, cache, slots, torch.full((len(slots), 2 * 2 * 24), float("nan")), shape)
    assert torch.equal(attend(kernels, qkv, cache, batch, shape), expected)


def test_a_very_large_score_does_not_overflow(float32):
    shape, batch = SHAPES["three heads share"], random_batch([(60, 64)], 16, 4)
    cache, exact_cache = filled_caches(float32, shape, 4, 16)
    qkv = random_queries(4, shape) * 1e8
    expected = attend(REFERENCE, qkv.double(), exact_cache, batch, shape)
    torch.testing.assert_close(attend(float32, qkv, cache, batch, shape).double(), expected, rtol=1e-4, atol=1e-4)


def test_a_cache_of_another_dtype_is_refused(kernels, half):
    shape = SHAPES["window"]
    cache = kernels.allocate_kv_cache(4, 16, 2, 24).to(torch.float32 if half else torch.float16)
    with pytest.raises(KernelArgumentError, match="kv_cache has dtype"):
        attend(kernels, random_queries(2, shape), cache, random_batch([(3, 5)], 16, 4), shape)


@pytest.mark.parametrize(
    ("group_size", "head_dim", "reason"),
    [(None, 256, None), (64, 96, None), (48, 64, "group_size 48.*multiples of 32"), (64, 512, "head_dim 512.*256")],
)
def test_what_these_kernels_cannot_compute_is_named(group_size, head_dim, reason):
    found = tiles.unsupported(group_size, head_dim)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(reason, found)
