"""Triton's norms, activation and rotary embedding against their reference, and the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from lab.gpu.kernel_operands import poisoned, qkv_width, random_batch
from serving.kernels.base import PADDING_SLOT, AttentionShape, QkvAdjustment
from serving.kernels.reference import ReferenceKernels
from tests.serving.kernels.triton.placing import DEVICE, ON_THE_GPU

pytestmark = ON_THE_GPU

REFERENCE = ReferenceKernels(DEVICE)
CLOSE = {"rtol": 2e-6, "atol": 2e-6}


@pytest.mark.parametrize("width", [576, 20, 1])
def test_norms_equal_torch_and_do_not_depend_on_other_rows(float32, width):
    x, residual, weight = torch.randn(9, width), torch.randn(9, width), torch.randn(width)
    expected, summed = poisoned(9, width).double(), residual.double()
    REFERENCE.add_rms_norm(x.double(), summed, weight.double(), 1e-5, expected)
    out, changed = poisoned(9, width), residual.clone()
    float32.add_rms_norm(x, changed, weight, 1e-5, out)
    assert torch.equal(changed, residual + x)
    torch.testing.assert_close(out.double(), expected, **CLOSE)
    alone = poisoned(1, width)
    float32.rms_norm(changed[-1:], weight, 1e-5, alone)
    assert torch.equal(alone, out[-1:])


@pytest.mark.parametrize("width", [1025, 20])
def test_silu_and_mul_equals_torch_over_the_whole_range(float32, width):
    gate_up = torch.randn(3, 2 * width) * torch.tensor([1.0, 30.0, 200.0])[:, None]
    expected, out = poisoned(3, width).double(), poisoned(3, width)
    REFERENCE.silu_and_mul(gate_up.double(), expected)
    float32.silu_and_mul(gate_up, out)
    torch.testing.assert_close(out.double(), expected, rtol=5e-6, atol=1e-6)


def test_the_parts_of_a_matmul_are_added_up_in_their_order(kernels):
    """Before a norm, an activation and a rotation: the same bits as from the sum."""
    parts = torch.randn(3, 5, 40)
    total = parts[0] + parts[1] + parts[2]
    residual, weight = torch.randn(5, 40), torch.randn(40)
    shape = AttentionShape(num_heads=2, num_kv_heads=1, head_dim=10, sliding_window=None)
    angles, slots = torch.randn(5, 5), torch.tensor([3, 1, 0, 7, 6], dtype=torch.int32)
    adjustment = QkvAdjustment(bias=torch.randn(40))
    batch, results = random_batch([(3, 8)], 4, 2), []
    for x in (parts.clone(), total.clone()):
        normed, added = poisoned(5, 40).to(kernels.activation_dtype), residual.clone()
        kernels.add_rms_norm(x, added, weight, 1e-5, normed)
        activated = poisoned(5, 20).to(kernels.activation_dtype)
        kernels.silu_and_mul(x, activated)
        cache = kernels.allocate_kv_cache(2, 4, 1, 10).fill_(7.0)
        kernels.rotary_and_store_kv(x, angles.cos(), angles.sin(), cache, slots, shape, adjustment)
        attended = poisoned(5, 20).to(kernels.activation_dtype)
        kernels.paged_attention(x, cache, batch, shape, attended)
        results.append((normed, added, activated, cache, attended))
    for mine, expected in zip(*results, strict=True):
        assert torch.equal(mine, expected)


def test_what_goes_into_a_matmul_never_becomes_infinite(kernels, half):
    """A product of 10⁶ is beyond float16, whose largest number is 65,504."""
    gate_up, out = torch.full((1, 2), 1000.0), poisoned(1, 1).to(kernels.activation_dtype)
    kernels.silu_and_mul(gate_up, out)
    assert out.item() == (65504.0 if half else 1e6)


def test_what_is_not_a_number_stays_so(kernels, half):
    """The GPU's plain minimum and maximum would make a number of it."""
    gate_up, out = torch.tensor([[float("nan"), 1.0]]), poisoned(1, 1).fill_(0.0).to(kernels.activation_dtype)
    kernels.silu_and_mul(gate_up, out)
    assert out.isnan().all()


@pytest.mark.parametrize("head_dim", [64, 24, 6])
@pytest.mark.parametrize("block_size", [16, 5])
def test_rotary_embedding_and_storing_equal_torch(kernels, half, head_dim, block_size):
    shape = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=head_dim, sliding_window=None)
    rows, blocks = 7, 9
    qkv, angles = torch.randn(rows, qkv_width(shape)), torch.randn(rows, head_dim // 2)
    slots = torch.randperm(blocks * block_size)[:rows].int()
    cache, mine = kernels.allocate_kv_cache(blocks, block_size, 2, head_dim).fill_(7.0), qkv.clone()
    kernels.rotary_and_store_kv(mine, angles.cos(), angles.sin(), cache, slots, shape)
    other, expected = REFERENCE.allocate_kv_cache(blocks, block_size, 2, head_dim).fill_(7.0), qkv.clone()
    REFERENCE.rotary_and_store_kv(expected, angles.cos(), angles.sin(), other, slots, shape)
    torch.testing.assert_close(mine[:, : 6 * head_dim], expected[:, : 6 * head_dim], **CLOSE)
    found = cache.view(blocks, 2, 2, block_size, head_dim).float()
    keys = other[:, 0].view(blocks, 2, head_dim, block_size).transpose(2, 3)
    values = other[:, 1].view(blocks, 2, block_size, head_dim)
    close = {"rtol": 1e-3, "atol": 1e-3} if half else CLOSE
    torch.testing.assert_close(found, torch.stack([keys, values], dim=1), **close)


def test_padding_is_stored_nowhere(float32):
    shape = AttentionShape(num_heads=2, num_kv_heads=1, head_dim=8, sliding_window=None)
    qkv, angles = torch.randn(3, qkv_width(shape)), torch.randn(3, 4)
    cache = poisoned(2, 2, 1, 4 * 8)
    slots = torch.tensor([PADDING_SLOT, 5, PADDING_SLOT], dtype=torch.int32)
    float32.rotary_and_store_kv(qkv, angles.cos(), angles.sin(), cache, slots, shape)
    assert cache.isnan().logical_not().nonzero()[:, :3].unique(dim=0).tolist() == [[1, 0, 0], [1, 1, 0]]
    assert int(cache.isnan().logical_not().sum()) == 2 * 8


@pytest.mark.parametrize("head_dim", [64, 6])
@pytest.mark.parametrize("parts", ["bias", "norms", "both"])
def test_biases_and_head_norms_equal_torch(float32, head_dim, parts):
    shape = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=head_dim, sliding_window=None)
    qkv = torch.randn(5, qkv_width(shape))
    adjustment = QkvAdjustment(
        bias=None if parts == "norms" else torch.randn(qkv_width(shape)),
        query_norm=None if parts == "bias" else torch.randn(head_dim),
        key_norm=None if parts == "bias" else torch.randn(head_dim),
    )
    angles, slots = torch.randn(5, head_dim // 2), torch.tensor([3, 1, 0, 7, 6], dtype=torch.int32)
    found = []
    for kernels in (float32, REFERENCE):
        cache, mine = kernels.allocate_kv_cache(2, 4, 2, head_dim).fill_(7.0), qkv.clone()
        kernels.rotary_and_store_kv(mine, angles.cos(), angles.sin(), cache, slots, shape, adjustment)
        keys = cache[:, 0].view(2, 2, 4, head_dim)
        if kernels is REFERENCE:
            keys = cache[:, 0].view(2, 2, head_dim, 4).transpose(2, 3)
        found.append((mine[:, : 6 * head_dim], keys, cache[:, 1]))
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
