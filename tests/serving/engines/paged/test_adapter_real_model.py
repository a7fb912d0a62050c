"""A real adapter on its real base: answers in float32 are those of the merged model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from serving.kernels.base import DecoderLayerWeights, DenseWeight, LinearWeight
from serving.kernels.lora import GATE_UP, QKV, LoraAdapter, LoraBatch, LoraMatrices, LoraSegment, Projection
from serving.models.llama import LlamaForCausalLM
from serving.models.loader import load_model
from serving.models.lora_loader import load_lora
from serving.text import Tokenizer
from tests.serving.models.batches import int32, metadata
from tests.small_model import ADAPTER, BASE, BUILD

PROMPT = "### Columns:\n['duration_ms', 'http.route', 'error']\n### Question:\nerrors by route\n### Query:\n"

pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(
        not (BASE / "model.safetensors").is_file(), reason=f"{BUILD} --adapter none --unquantized {BASE} makes it"
    ),
]


def merged_weight(weight: LinearWeight, adapters: list[LoraMatrices]) -> DenseWeight:
    assert isinstance(weight, DenseWeight)
    return DenseWeight(
        tuple(
            part.float() + one.scaling * (one.up.float().T @ one.down.float())
            for part, one in zip(weight.parts, adapters, strict=True)
        )
    )


def merged_layer(layer: DecoderLayerWeights, adapter: tuple[LoraMatrices, ...]) -> DecoderLayerWeights:
    return replace(
        layer,
        qkv=merged_weight(layer.qkv, [adapter[projection] for projection in QKV]),
        output=merged_weight(layer.output, [adapter[Projection.OUTPUT]]),
        gate_up=merged_weight(layer.gate_up, [adapter[projection] for projection in GATE_UP]),
        down=merged_weight(layer.down, [adapter[Projection.DOWN]]),
    )


class Session:
    """One request on a cache of its own."""

    def __init__(self, model: LlamaForCausalLM, lora: LoraAdapter | None = None) -> None:
        self._model, self._lora = model, lora
        self._caches = model.allocate_kv_caches(16, 16)
        self._length = 0

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Those of the next tokens."""
        start, stop = self._length, self._length + len(tokens)
        self._length = stop
        lora = self._lora and LoraBatch((LoraSegment(0, len(tokens), self._lora),))
        batch = metadata([(start, stop)], [list(range(16))], 16)
        hidden = self._model.forward(int32(tokens), int32(range(start, stop)), self._caches, batch, lora)
        return self._model.compute_logits(hidden)


def greedy(model: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    session, answer = Session(model), []
    while len(answer) < count:
        answer.append(int(session.logits(answer[-1:] or prompt)[-1].argmax()))
    return answer


def test_the_default_model_s_adapter_answers_as_its_merged_model():
    """One pass over the merged model's whole answer gives each of its tokens, with nearly the same logits."""
    model = load_model(BASE, num_threads=1)
    decoder = model.weights.decoder
    lora = load_lora(ADAPTER, decoder, max_rank=24, max_bytes=20_000_000).lora
    layers = tuple(map(merged_layer, decoder.layers, lora.layers))
    weights = replace(model.weights, decoder=replace(decoder, layers=layers))
    merged = LlamaForCausalLM(model.config, weights, model._kernels)
    prompt = Tokenizer.from_dir(BASE).encode(PROMPT)
    answer = greedy(merged, prompt, 24)
    whole = [*prompt, *answer[:-1]]
    expected, adapted, plain = (
        Session(one, adapter).logits(whole)[len(prompt) - 1 :]
        for one, adapter in ((merged, None), (model, lora), (model, None))
    )
    torch.testing.assert_close(adapted, expected, rtol=1e-3, atol=5e-3)
    assert adapted.argmax(1).tolist() == answer
    assert plain.argmax(1).tolist() != answer
