"""Models with an adapter merged into them in memory, and single requests to models."""

from __future__ import annotations

from dataclasses import replace

import torch

from lab.gpu.kernel_operands import int32, ragged_batch
from serving.kernels.base import DecoderLayerWeights, DenseWeight, Kernels, LinearWeight
from serving.kernels.lora import GATE_UP, QKV, LoraAdapter, LoraBatch, LoraMatrices, LoraSegment, Projection
from serving.models.llama import LlamaForCausalLM


def merged_model(model: LlamaForCausalLM, kernels: Kernels, lora: LoraAdapter) -> LlamaForCausalLM:
    """The model with the adapter in its weights, in float32; `kernels` are those with which it was loaded."""
    decoder = model.weights.decoder
    layers = tuple(map(merged_layer, decoder.layers, lora.layers))
    return LlamaForCausalLM(model.config, replace(model.weights, decoder=replace(decoder, layers=layers)), kernels)


def merged_weight(weight: LinearWeight, adapters: list[LoraMatrices]) -> DenseWeight:
    """A matmul's weight with the adapters of its parts."""
    assert isinstance(weight, DenseWeight)
    return DenseWeight(
        tuple(
            part.float() + one.scaling * (one.up.float().T @ one.down.float())
            for part, one in zip(weight.parts, adapters, strict=True)
        )
    )


def merged_layer(layer: DecoderLayerWeights, adapter: tuple[LoraMatrices, ...]) -> DecoderLayerWeights:
    """All matmuls of a layer."""
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
        batch = ragged_batch([(start, stop)], [list(range(16))], 16)
        hidden = self._model.forward(int32(tokens), int32(range(start, stop)), self._caches, batch, lora)
        return self._model.compute_logits(hidden)


def greedy(model: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    """The likeliest next tokens."""
    session, answer = Session(model), []
    while len(answer) < count:
        answer.append(int(session.logits(answer[-1:] or prompt)[-1].argmax()))
    return answer
