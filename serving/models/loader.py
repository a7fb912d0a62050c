"""From a checkpoint folder to a model that runs.

Owns: the names of a Llama checkpoint's tensors and how they are joined. Weights stay where the file is
mapped unless the kernels repack them.

    model = load_model(Path("weights/honeycomb-nlq"))
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from serving.errors import WeightsError
from serving.kernels.base import (
    Activations,
    AwqTensors,
    DecoderLayerWeights,
    DecoderWeights,
    DenseWeight,
    Kernels,
    LinearWeight,
)
from serving.kernels.select import create_kernels
from serving.models.checkpoint import FLOATS, Checkpoint
from serving.models.config import ModelConfig, read_config
from serving.models.llama import LlamaForCausalLM, ModelWeights


def load_model(
    weights_dir: Path,
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    activations: Activations = Activations.FLOAT32,
) -> LlamaForCausalLM:
    """Read, check and pack a checkpoint. None takes all cores this process may use.

    Raises:
        WeightsError: what is on disk is not a model that this engine computes; nothing was kept.
    """
    kernels = create_kernels(device, num_threads, activations)
    return load_with_kernels(weights_dir, kernels, device=device)


def load_with_kernels(weights_dir: Path, kernels: Kernels, *, device: str = "cpu") -> LlamaForCausalLM:
    """`load_model` with kernels of the caller's choice."""
    config = read_config(weights_dir)
    checkpoint = Checkpoint(weights_dir)
    weights = _Reader(config, checkpoint, kernels, device).model()
    ignored = ("rotary_emb.inv_freq", *(("lm_head.weight",) if config.tie_word_embeddings else ()))
    checkpoint.refuse_unused(ignored)
    return LlamaForCausalLM(config, weights, kernels)


class _Reader:
    """Looks up a model's tensors by their names."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, kernels: Kernels, device: str) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._kernels = kernels
        self._device = device

    def model(self) -> ModelWeights:
        config = self._config
        table = (config.vocab_size, config.hidden_size)
        embedding = self._kernels.place_table(self._tensor("model.embed_tokens.weight", table, FLOATS))
        tied = config.tie_word_embeddings
        decoder = DecoderWeights(
            layers=tuple(self._layer(f"model.layers.{i}.") for i in range(config.num_layers)),
            final_norm=self._norm("model.norm"),
            attention=config.attention,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            rms_norm_eps=config.rms_norm_eps,
        )
        if tied:
            return ModelWeights(embedding, decoder, embedding)
        head = self._kernels.place_table(self._tensor("lm_head.weight", table, FLOATS))
        return ModelWeights(embedding, decoder, head)

    def _layer(self, prefix: str) -> DecoderLayerWeights:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        shape = self._config.attention
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = {attention + "q_proj": queries, attention + "k_proj": keys, attention + "v_proj": keys}
        return DecoderLayerWeights(
            input_norm=self._norm(prefix + "input_layernorm"),
            qkv=self._linear(hidden, qkv),
            output=self._linear(queries, {attention + "o_proj": hidden}),
            post_attention_norm=self._norm(prefix + "post_attention_layernorm"),
            gate_up=self._linear(hidden, {mlp + "gate_proj": inner, mlp + "up_proj": inner}),
            down=self._linear(inner, {mlp + "down_proj": hidden}),
        )

    def _tensor(
        self, name: str, shape: tuple[int, ...], dtypes: torch.dtype | tuple[torch.dtype, ...]
    ) -> Tensor:
        return self._checkpoint.tensor(name, shape, dtypes).to(self._device)

    def _norm(self, name: str) -> Tensor:
        return self._tensor(f"{name}.weight", (self._config.hidden_size,), FLOATS).float()

    def _linear(self, inputs: int, outputs: dict[str, int]) -> LinearWeight:
        """Layers that share their input, joined along their outputs."""
        quantized = [f"{name}.qweight" in self._checkpoint for name in outputs]
        if not any(quantized):
            parts = (self._tensor(f"{name}.weight", (size, inputs), FLOATS) for name, size in outputs.items())
            return DenseWeight(tuple(parts))
        if not all(quantized) or self._config.awq_group_size is None:
            raise WeightsError(
                f"of {', '.join(outputs)} some are AWQ-quantized in the checkpoint and "
                "some not, or config.json does not say quant_method awq: rebuild the weights"
            )
        parts_awq = [self._awq(name, inputs, size) for name, size in outputs.items()]
        return self._kernels.pack_awq(_join(parts_awq))

    def _awq(self, name: str, inputs: int, outputs: int) -> AwqTensors:
        group = self._config.awq_group_size
        if group is None or inputs % group or outputs % 8:
            raise WeightsError(
                f"{name} is {inputs} x {outputs} with group_size {group}: inputs must be a multiple of the "
                "group size and outputs of 8; quantize with another group size"
            )
        groups = inputs // group
        return AwqTensors(
            qweight=self._tensor(f"{name}.qweight", (inputs, outputs // 8), torch.int32),
            qzeros=self._tensor(f"{name}.qzeros", (groups, outputs // 8), torch.int32),
            scales=self._tensor(f"{name}.scales", (groups, outputs), torch.float16),
            group_size=group,
        )


def _join(parts: list[AwqTensors]) -> AwqTensors:
    if len(parts) == 1:
        return parts[0]
    return AwqTensors(
        qweight=torch.cat([part.qweight for part in parts], dim=1),
        qzeros=torch.cat([part.qzeros for part in parts], dim=1),
        scales=torch.cat([part.scales for part in parts], dim=1),
        group_size=parts[0].group_size,
    )
