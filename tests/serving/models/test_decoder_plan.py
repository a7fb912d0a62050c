"""All layers in one C++ call give the same bits as layer by layer, and rows do not affect each other."""

from __future__ import annotations

import pytest
import torch

from lab.gpu.kernel_operands import int32, ragged_batch
from serving.kernels.shape_checks import KernelArgumentError
from tests.serving.models import tiny_checkpoints
from tests.serving.models.batches import run, run_whole

TOKENS = torch.randint(0, 199, (80,), generator=torch.Generator().manual_seed(1)).tolist()


# With groups of 64 and heads of 32 tiles are used: there matmuls round, and add to the residual themselves.
WIDE = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4}


@pytest.fixture(
    scope="module", params=["dense", "dense in tiles", "awq", "awq in tiles", "mixed in tiles", "biases in tiles"]
)
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    wide = WIDE if "tiles" in request.param else {}
    if "biases" in request.param:
        model = tiny_checkpoints.tiny_llama(**wide, attention_bias=True, mlp_bias=True)
    else:
        model = tiny_checkpoints.tiny_mistral(**wide)
    tiny_checkpoints.save(model, folder, torch.bfloat16 if request.param == "dense in tiles" else torch.float16)
    if "dense" not in request.param:
        left = tiny_checkpoints.SIXTEEN_BITS if "mixed" in request.param else ()
        tiny_checkpoints.quantize(folder, model, 64 if "tiles" in request.param else 16, left)
    return folder


def forward(model, by_layer, kv_caches, block_size):
    batch = ragged_batch([(0, 33), (0, 5)], [[3, 0, 2, 4, 5], [1]], block_size)
    ids, positions = int32(TOKENS[:38]), int32([*range(33), *range(5)])
    if not by_layer:
        return model.forward(ids, positions, kv_caches, batch)
    hidden = model.embed(ids)
    return model.forward_by_layer(hidden, *model.rotary(positions), kv_caches, batch)


@pytest.mark.parametrize("block_size", [16, 8])  # 8: keys and values are not kept in tiles
def test_one_call_equals_layer_by_layer_bit_for_bit(model, block_size):
    caches = [model.allocate_kv_caches(6, block_size) for _ in range(2)]
    for cache in (*caches[0], *caches[1]):
        cache.zero_()
    one_call, by_layer = (
        forward(model, by_layer, cache, block_size) for by_layer, cache in zip((False, True), caches, strict=True)
    )
    assert torch.equal(one_call, by_layer)
    assert all(torch.equal(a, b) for a, b in zip(*caches, strict=True))


@pytest.mark.parametrize("chunks", [[1] * 80, [79, 1], [16] * 5, [3, 64, 13]])
def test_chunks_do_not_change_a_bit(model, chunks):
    assert torch.equal(run_whole(model, TOKENS, chunks), run_whole(model, TOKENS, [80]))


def test_other_requests_and_other_blocks_do_not_change_a_bit(model):
    alone = run_whole(model, TOKENS, [80])
    kv_caches = model.allocate_kv_caches(20, 16)
    tables = [[9, 2, 7, 4, 0], [1, 3], [5, 6, 8, 10, 11]]
    tokens = [TOKENS, TOKENS[::-1], TOKENS]
    run(model, tokens, [(0, 40), (0, 20), (0, 79)], tables, kv_caches, 16)
    together = run(model, tokens, [(40, 80), (20, 22), (79, 80)], tables, kv_caches, 16)
    assert torch.equal(together[:40], alone[40:])
    assert torch.equal(together[-1], alone[-1])


def test_allowed_logits_have_the_bits_of_all(model):
    hidden = torch.randn(7, model.config.hidden_size)
    bitmasks = torch.zeros(2, -(-model.config.vocab_size // 32), dtype=torch.int32)
    bitmasks[0, 0], bitmasks[1, 2] = 0b101, 0b11
    allowed = model.compute_allowed_logits(hidden, int32([6, 0]), bitmasks, 2)
    everything = model.compute_logits(hidden)
    assert allowed.columns.tolist() == [[0, 2], [64, 65]]
    assert torch.equal(allowed.products, torch.stack((everything[6, [0, 2]], everything[0, 64:66])))


def test_rotary_tables_grow_with_the_positions_of_a_pass(model):
    """Beyond the current tables, too, the bits are those of layer by layer."""
    batch, ids = ragged_batch([(0, 3)], [[0]], 16), int32([7, 8, 9])
    positions = int32([4094, 5000, 5001])  # keys at several positions, so that attention depends on the angles
    assert model.rotary.tables[0].shape[0] <= 4096
    one_call = model.forward(ids, positions, model.allocate_kv_caches(1, 16), batch)
    assert model.rotary.tables[0].shape[0] > 5001
    angles = model.rotary(positions)
    by_layer = model.forward_by_layer(model.embed(ids), *angles, model.allocate_kv_caches(1, 16), batch)
    assert torch.equal(one_call, by_layer)
    near = model.forward(ids, int32([4094, 4095, 4095]), model.allocate_kv_caches(1, 16), batch)
    assert not torch.equal(one_call, near)
    with pytest.raises(KernelArgumentError, match="a position"):
        model.forward(ids, int32([0, -1, 1]), model.allocate_kv_caches(1, 16), batch)


def test_a_batch_with_indices_out_of_range_is_refused(model):
    kv_caches = model.allocate_kv_caches(2, 16)
    with pytest.raises(KernelArgumentError, match="out of range"):
        run(model, [TOKENS], [(0, 5)], [[7]], kv_caches, 16)
    with pytest.raises(KernelArgumentError, match="KV caches for 2 layers"):
        run(model, [TOKENS], [(0, 5)], [[0]], kv_caches[:1], 16)
