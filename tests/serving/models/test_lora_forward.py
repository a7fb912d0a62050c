"""A model with adapters: one call and layer by layer, mixed batches, and quantized bases."""

from __future__ import annotations

import pytest
import torch

from lab.gpu.kernel_operands import int32, ragged_batch
from serving.kernels.lora import LoraBatch, LoraSegment
from serving.kernels.shape_checks import KernelArgumentError
from tests.serving.kernels.lora_inputs import NARROW, random_adapter
from tests.serving.models import tiny_checkpoints

TOKENS = torch.randint(0, 199, (38,), generator=torch.Generator().manual_seed(1)).tolist()
SPANS = [(0, 20), (0, 12), (0, 6)]
WIDE = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4}  # for tiles


@pytest.fixture(scope="module", params=["dense", "awq", "awq in tiles", "mixed in tiles", "compressed"])
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    model = tiny_checkpoints.tiny_llama(**WIDE if "tiles" in request.param else {})
    tiny_checkpoints.save(model, folder, torch.float16)
    if request.param == "compressed":
        tiny_checkpoints.compress(folder, model)
    elif request.param != "dense":
        left = tiny_checkpoints.SIXTEEN_BITS if "mixed" in request.param else ()
        tiny_checkpoints.quantize(folder, model, 64 if "tiles" in request.param else 16, left)
    return folder


def adapter_of(model, ranks, seed):
    torch.manual_seed(seed)
    return random_adapter(ranks, num_layers=2, shapes=model.weights.decoder.projections, size=0.2)


def forward(model, spans, lora, *, by_layer=False):
    tables = [[4 * i, 4 * i + 2] for i in range(len(spans))]
    kv_caches = model.allocate_kv_caches(12, 16)
    for cache in kv_caches:
        cache.zero_()
    batch = ragged_batch(spans, tables, 16)
    ids = int32([token for start, stop in spans for token in TOKENS[start:stop]])
    positions = int32([at for start, stop in spans for at in range(start, stop)])
    if by_layer:
        hidden = model.embed(ids)
        return model.forward_by_layer(hidden, *model.rotary(positions), kv_caches, batch, lora)
    return model.forward(ids, positions, kv_caches, batch, lora)


def test_a_mixed_batch_has_the_bits_of_each_request_alone_and_of_layer_by_layer(model):
    one, other = adapter_of(model, (8,), 1), adapter_of(model, (0, 3, 17, 5, 0, 2, 4), 2)
    lora = LoraBatch((LoraSegment(0, 20, one), LoraSegment(32, 38, other)))
    mixed = forward(model, SPANS, lora)
    assert torch.equal(mixed, forward(model, SPANS, lora, by_layer=True))
    first = forward(model, SPANS[:1], LoraBatch((LoraSegment(0, 20, one),)))
    plain, last = forward(model, SPANS[1:2], None), forward(model, SPANS[2:], LoraBatch((LoraSegment(0, 6, other),)))
    assert torch.equal(mixed, torch.cat((first, plain, last)))
    assert not torch.equal(mixed[:20], forward(model, SPANS, None)[:20])


def test_an_adapter_of_another_model_is_refused(model):
    foreign = random_adapter((4,), num_layers=2, shapes=NARROW)
    with pytest.raises(KernelArgumentError, match="an adapter of another model"):
        forward(model, SPANS, LoraBatch((LoraSegment(0, 20, foreign),)))
