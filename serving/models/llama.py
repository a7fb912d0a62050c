"""Llama and similar models, run on one ragged batch of several requests.

hidden = model.forward(input_ids, positions, kv_caches, attention_metadata)
logits = model.compute_logits(hidden[rows_that_need_them])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.kernels.base import (
    AttentionMetadata,
    DecoderLayerWeights,
    DecoderPlan,
    DecoderWeights,
    HeadScreen,
    Kernels,
    LinearWeight,
    MaskedProducts,
)
from serving.kernels.lora import GATE_UP, QKV, LoraBatch, LoraSite, Projection
from serving.kernels.rope import RotaryTable
from serving.models.config import ModelConfig
from serving.models.layers import Attention, Linear, Mlp, RmsNorm


@dataclass(frozen=True)
class ModelWeights:
    """All weights of a checkpoint, packed for one set of kernels."""

    embedding: Tensor  # [vocab, hidden], any float dtype
    decoder: DecoderWeights
    head: Tensor  # [vocab, hidden], any float dtype; the embedding itself if tied
    screen: HeadScreen | None = None  # of the head


class DecoderLayer:
    """One decoder layer: attention and MLP, each after a norm."""

    def __init__(self, index: int, weights: DecoderLayerWeights, config: ModelConfig, kernels: Kernels) -> None:
        def linear(weight: LinearWeight, *projections: Projection, bias: Tensor | None = None) -> Linear:
            return Linear(weight, LoraSite(index, projections), kernels, bias)

        dtype = kernels.activation_dtype
        self._input_norm = RmsNorm(weights.input_norm, config.rms_norm_eps, kernels, dtype)
        self._attention = Attention(
            linear(weights.qkv, *QKV),
            linear(weights.output, Projection.OUTPUT, bias=weights.output_bias),
            config.attention,
            kernels,
            weights.qkv_adjustment,
        )
        self._mlp_norm = RmsNorm(weights.post_attention_norm, config.rms_norm_eps, kernels, dtype)
        self._mlp = Mlp(
            linear(weights.gate_up, *GATE_UP, bias=weights.gate_up_bias),
            linear(weights.down, Projection.DOWN, bias=weights.down_bias),
            kernels,
        )

    def __call__(
        self,
        branch: Tensor | None,
        residual: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        lora: LoraBatch | None = None,
    ) -> Tensor:
        """Run the layer; the norms add pending outputs to the residual.

        Args:
            branch: output of the layer before or its parts, not yet added to the residual; None for the first layer.
            residual: [T, hidden], changed in place.
            cos, sin, kv_cache, metadata, lora: see `Attention`.

        Returns:
            This layer's output [T, hidden] or its parts [P, T, hidden], not yet added to the residual.
        """
        normed = self._input_norm(residual, branch)
        # No name for what attention returns, so that its memory is free for the MLP.
        normed = self._mlp_norm(residual, self._attention(normed, cos, sin, kv_cache, metadata, lora))
        return self._mlp(normed, lora)


class LlamaForCausalLM:
    """A Llama, Mistral or Qwen model."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, kernels: Kernels) -> None:
        self.config = config
        self.weights = weights
        self.screen = weights.screen
        self._kernels = kernels
        self.rotary = RotaryTable(config.rope, config.attention.head_dim, str(weights.embedding.device))
        self._layers = [DecoderLayer(i, layer, config, kernels) for i, layer in enumerate(weights.decoder.layers)]
        self._final_norm = RmsNorm(weights.decoder.final_norm, config.rms_norm_eps, kernels, torch.float32)
        self._plan: DecoderPlan | None = kernels.plan_decoder(weights.embedding, weights.decoder, self.rotary)

    @property
    def row_cost(self) -> float:
        """See `Kernels.row_cost`."""
        return self._kernels.row_cost

    @property
    def kernels_name(self) -> str:
        """The name of the kernels, for logs and results."""
        return self._kernels.name

    def allocate_kv_caches(self, num_blocks: int, block_size: int) -> list[Tensor]:
        """A KV cache for each layer; its first dimension is the block."""
        shape = self.config.attention
        return [
            self._kernels.allocate_kv_cache(num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
            for _ in self._layers
        ]

    def populate(self, kv_caches: Sequence[Tensor]) -> None:
        """See `Kernels.populate`."""
        self._kernels.populate(kv_caches)

    @torch.inference_mode()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[Tensor],
        attention_metadata: AttentionMetadata,
        lora: LoraBatch | None = None,
    ) -> Tensor:
        """input_ids, positions: [num_tokens] int32 → hidden [num_tokens, hidden] float32."""
        if self._plan is None:  # a GPU, or no C++ compiler; otherwise one call computes everything
            cos, sin = self.rotary(positions)
            return self.forward_by_layer(self.embed(input_ids), cos, sin, kv_caches, attention_metadata, lora)
        out = torch.empty(input_ids.shape[0], self.config.hidden_size)
        self._plan.run(input_ids, positions, kv_caches, attention_metadata, out, lora)
        return out

    @torch.inference_mode()
    def forward_by_layer(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_caches: Sequence[Tensor],
        attention_metadata: AttentionMetadata,
        lora: LoraBatch | None = None,
    ) -> Tensor:
        """Run all layers one by one: hidden [T, hidden], changed in place → [T, hidden] after the final norm."""
        branch: Tensor | None = None
        for layer, kv_cache in zip(self._layers, kv_caches, strict=True):
            branch = layer(branch, hidden, cos, sin, kv_cache, attention_metadata, lora)
        return self._final_norm(hidden, branch)

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden: [rows, hidden] → [rows, vocab] float32."""
        out = torch.empty(hidden.shape[0], self.config.vocab_size, device=hidden.device)
        self._kernels.dense_gemm(hidden, self.weights.head, out)
        return out

    def compute_allowed_logits(
        self, hidden: Tensor, rows: Tensor, bitmasks: Tensor, max_columns: int
    ) -> MaskedProducts:
        """Logits of the tokens that a bitmask allows, for rows that allow at most `max_columns`.

        hidden: [any, hidden]; rows: [n] int32 and bitmasks: [n, ceil(vocab / 32)] int32, both on the CPU.
        """
        out = MaskedProducts.empty(rows.shape[0], max_columns)
        self._kernels.masked_products(hidden, self.weights.head, rows, bitmasks, out)
        return out

    def embed(self, input_ids: Tensor) -> Tensor:
        """[num_tokens] int32 → [num_tokens, hidden] float32."""
        out = torch.empty(input_ids.shape[0], self.config.hidden_size, device=input_ids.device)
        self._kernels.embedding(input_ids, self.weights.embedding, out)
        return out
