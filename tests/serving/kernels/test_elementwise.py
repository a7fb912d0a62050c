"""Embedding, norms, activation and rotary embedding against their reference implementations in torch."""

from __future__ import annotations

import pytest
import torch

from lab.gpu.kernel_operands import int32, poisoned, qkv_width
from serving.kernels.base import AttentionShape, QkvAdjustment
from serving.kernels.reference import ReferenceKernels
from serving.kernels.shape_checks import KernelArgumentError

REFERENCE = ReferenceKernels()
ROWS = [1, 2, 7, 8, 9, 16, 17, 127, 128, 129]
WIDTHS = [576, 96, 20, 1]
CLOSE = {"rtol": 2e-6, "atol": 2e-6}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_embedding_is_exact(cpu_float32, dtype, width):
    table, ids = torch.randn(50, width).to(dtype), torch.randint(0, 50, (33,)).int()
    out = poisoned(33, width)
    cpu_float32.embedding(ids, table, out)
    assert torch.equal(out, table[ids.long()].float())


@pytest.mark.parametrize("token", [-1, 50])
def test_a_token_that_does_not_exist_is_refused(cpu_float32, token):
    out = poisoned(2, 8)
    with pytest.raises(KernelArgumentError, match="a token id out of range"):
        cpu_float32.embedding(int32([3, token]), torch.randn(50, 8), out)
    assert out.isnan().all()


@pytest.mark.parametrize("width", WIDTHS)
def test_norms_equal_torch_and_do_not_depend_on_other_rows(cpu_float32, width):
    x, residual, weight = torch.randn(129, width), torch.randn(129, width), torch.randn(width)
    expected, summed = poisoned(129, width), residual.clone()
    REFERENCE.add_rms_norm(x, summed, weight, 1e-5, expected)
    for rows in ROWS:
        out, changed = poisoned(rows, width), residual[:rows].clone()
        cpu_float32.add_rms_norm(x[:rows], changed, weight, 1e-5, out)
        assert torch.equal(changed, summed[:rows])
        torch.testing.assert_close(out, expected[:rows], **CLOSE)
        again = poisoned(rows, width)
        cpu_float32.rms_norm(changed, weight, 1e-5, again)
        assert torch.equal(again, out)
        alone = poisoned(1, width)
        cpu_float32.rms_norm(changed[-1:], weight, 1e-5, alone)
        assert torch.equal(alone, out[-1:])


@pytest.mark.parametrize("width", [1536, 513, 20])
def test_silu_and_mul_equals_torch_over_the_whole_range(cpu_float32, width):
    gate_up = torch.randn(33, 2 * width) * torch.tensor([1.0, 30.0, 200.0])[:, None].repeat(11, 1)
    expected, out = poisoned(33, width), poisoned(33, width)
    REFERENCE.silu_and_mul(gate_up, expected)
    cpu_float32.silu_and_mul(gate_up, out)
    torch.testing.assert_close(out, expected, rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize("head_dim", [64, 24, 6])
@pytest.mark.parametrize("block_size", [16, 5, 1])
def test_rotary_embedding_and_storing_equal_torch(cpu_float32, head_dim, block_size):
    shape = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=head_dim, sliding_window=None)
    rows, blocks = 23, 30
    qkv, angles = torch.randn(rows, qkv_width(shape)), torch.randn(rows, head_dim // 2)
    slots = torch.randperm(blocks * block_size)[:rows].int()
    results = []
    for kernels in (REFERENCE, cpu_float32):
        cache, mine = kernels.allocate_kv_cache(blocks, block_size, 2, head_dim), qkv.clone()
        cache.fill_(7.0)
        kernels.rotary_and_store_kv(mine, angles.cos(), angles.sin(), cache, slots, shape)
        results.append((mine[:, : 6 * head_dim], cache))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("head_dim", [64, 24, 6])
@pytest.mark.parametrize("parts", ["bias", "norms", "both"])
def test_biases_and_head_norms_equal_torch(cpu_float32, head_dim, parts):
    shape = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=head_dim, sliding_window=None)
    qkv = torch.randn(23, qkv_width(shape))
    adjustment = QkvAdjustment(
        bias=None if parts == "norms" else torch.randn(qkv_width(shape)),
        query_norm=None if parts == "bias" else torch.randn(head_dim),
        key_norm=None if parts == "bias" else torch.randn(head_dim),
    )
    found, expected = qkv.clone(), qkv.clone()
    cpu_float32.adjust_qkv(found, adjustment, shape)
    REFERENCE.adjust_qkv(expected, adjustment, shape)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert torch.equal(found[:, -2 * head_dim :], expected[:, -2 * head_dim :]), "values only get the bias"


def test_one_head_norm_without_the_other_is_refused(cpu_float32):
    shape = AttentionShape(num_heads=1, num_kv_heads=1, head_dim=8, sliding_window=None)
    with pytest.raises(KernelArgumentError, match="both be given"):
        cpu_float32.adjust_qkv(torch.randn(1, 24), QkvAdjustment(key_norm=torch.ones(8)), shape)


@pytest.mark.parametrize("slot", [-1, 64])
def test_a_slot_outside_the_cache_is_refused(cpu_float32, slot):
    shape = AttentionShape(num_heads=1, num_kv_heads=1, head_dim=8, sliding_window=None)
    cache = cpu_float32.allocate_kv_cache(4, 16, 1, 8)
    cache.fill_(7.0)
    qkv, angles = torch.randn(1, 24), torch.randn(1, 4)
    with pytest.raises(KernelArgumentError, match="a slot out of range"):
        cpu_float32.rotary_and_store_kv(qkv, angles, angles, cache, int32([slot]), shape)
    assert (cache == 7.0).all()
