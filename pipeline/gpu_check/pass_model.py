"""Runs single passes of a model with a chosen number of rows and context, and knows what they read and compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from serving.kernels.base import Activations, AttentionMetadata, AwqWeight, LinearWeight
from serving.kernels.select import Device
from serving.models.llama import LlamaForCausalLM
from serving.models.loader import load_model

BLOCK_SIZE: Final = 16
_ALLOWED: Final = 16  # tokens that a row may choose from, as under a grammar


class PassModel:
    """A model with a KV cache of its own, as the paged engine loads it with DTYPE=auto.

    Args:
        weights: folder of the checkpoint.
        device: what computes it.
        longest: tokens of the longest context.
    """

    def __init__(self, weights: Path, device: Device, longest: int) -> None:
        self._device = device.torch_name
        self.model: LlamaForCausalLM = load_model(weights, device=device, activations=Activations.BFLOAT16)
        if device is Device.CUDA:
            self.model.rotary.complete(longest)  # as the engine does, so that passes do not wait
        self.kv_caches = self.model.allocate_kv_caches(-(-longest // BLOCK_SIZE), BLOCK_SIZE)
        for cache in self.kv_caches:
            cache.zero_()

    @property
    def kernels_name(self) -> str:
        """The name of the kernels."""
        return self.model.kernels_name

    def one_pass(self, rows: int, context: int, *, with_logits: bool = True) -> Callable[[], object]:
        """A call that runs the last `rows` tokens of one request, the rest of whose context is cached.

        Args:
            rows: tokens computed.
            context: tokens of the request.
            with_logits: whether each row has the logits of a few allowed tokens, as under a grammar.
        """
        ids, positions, metadata = self.inputs(rows, context)
        words = -(-self.model.config.vocab_size // 32)
        allowed = torch.zeros(rows, words, dtype=torch.int32)
        allowed[:, :: max(1, words // _ALLOWED)][:, :_ALLOWED] = 1
        chosen = torch.arange(rows, dtype=torch.int32)

        def run() -> None:
            hidden = self.model.forward(ids, positions, self.kv_caches, metadata)
            if with_logits:
                self.model.compute_allowed_logits(hidden, chosen, allowed, _ALLOWED)

        return run

    def inputs(self, rows: int, context: int) -> tuple[Tensor, Tensor, AttentionMetadata]:
        """Token ids, positions and metadata of a pass, on the device."""
        positions = torch.arange(context - rows, context, dtype=torch.int32, device=self._device)
        metadata = AttentionMetadata(
            query_start=torch.tensor([0, rows], dtype=torch.int32, device=self._device),
            context_lens=torch.tensor([context], dtype=torch.int32, device=self._device),
            block_tables=torch.arange(-(-context // BLOCK_SIZE), dtype=torch.int32, device=self._device)[None],
            slot_mapping=positions.clone(),  # blocks are in order, so the slot is the position
        )
        return 5 + positions % (self.model.config.vocab_size - 5), positions, metadata

    def bytes_read(self, context: int) -> int:
        """At least, by a pass: the weights of all layers once, and the keys and values of the context."""
        weights = sum(tensor.nbytes for weight in self._linears() for tensor in _tensors(weight))
        cached = sum(cache[0].nbytes for cache in self.kv_caches) // BLOCK_SIZE
        return weights + cached * context

    def flop(self, rows: int, context: int, *, with_logits: bool = True) -> int:
        """Floating-point operations of a pass: matmuls, attention of each row to what is before it, allowed tokens."""
        config, shape = self.model.config, self.model.config.attention
        matmuls = sum(2 * weight.in_features * weight.out_features for weight in self._linears())
        seen = sum(range(context - rows + 1, context + 1))
        attention = 4 * config.num_layers * shape.num_heads * shape.head_dim * seen
        head = 2 * _ALLOWED * config.hidden_size if with_logits else 0
        return rows * (matmuls + head) + attention

    def _linears(self) -> Iterator[LinearWeight]:
        for layer in self.model.weights.decoder.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)


def _tensors(weight: LinearWeight) -> tuple[Tensor, ...]:
    return (weight.quants, weight.zeros, weight.scales) if isinstance(weight, AwqWeight) else weight.parts
