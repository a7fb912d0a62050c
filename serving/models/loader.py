"""Load a model from a checkpoint folder.

4-bit layers of compressed-tensors' `pack-quantized` format are laid out as AutoAWQ lays them out. There a weight is
int32 [N, K / 8], eight inputs in a word, lowest nibble first, each value stored plus 8. Zero points are packed likewise
along N. Source: compressed_tensors/compressors/pack_quantized (compressed-tensors 0.17).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from serving.errors import WeightsError
from serving.kernels.base import (
    AWQ_ORDER,
    Activations,
    AwqTensors,
    DecoderLayerWeights,
    DecoderWeights,
    DenseWeight,
    Kernels,
    LinearWeight,
    QkvAdjustment,
)
from serving.kernels.reference import unpack_awq
from serving.kernels.select import Device, create_kernels
from serving.models.config import ModelConfig, Quantization, read_config
from serving.models.llama import LlamaForCausalLM, ModelWeights
from serving.models.tensor_files import FLOATS, TensorFiles

_OFFSET = 8  # it is added to every value that is stored


def awq_tensors(name: str, packed: Tensor, scale: Tensor, zero_point: Tensor | None, group_size: int) -> AwqTensors:
    """The same layer in AutoAWQ's layout.

    Args:
        name: the name of the layer, for errors.
        packed: [N, K // 8] int32.
        scale: [N, K // group_size], any float.
        zero_point: [N // 8, K // group_size] int32; None for symmetric layers.
        group_size: inputs that share a scale.

    Raises:
        WeightsError: a scale does not fit fp16.
    """
    outputs, groups = scale.shape
    values = unpack_awq(packed, range(8)).T.contiguous()  # [K, N]
    if zero_point is None:
        zeros = torch.full((groups, outputs), _OFFSET, dtype=torch.int32)
    else:
        zeros = unpack_awq(zero_point.T.contiguous(), range(8))[:, :outputs]  # [K // group_size, N]
    scales = scale.float().T.contiguous().half()
    if not torch.isfinite(scales).all():
        raise WeightsError(f"{name} has a scale beyond fp16's 65,504; quantize again with scripts/quantize_awq")
    return AwqTensors(_pack(values), _pack(zeros), scales, group_size)


def _pack(values: Tensor) -> Tensor:
    """[R, N] int32 of 0 … 15 → [R, N // 8] int32 in AutoAWQ's order."""
    grouped = values.view(values.shape[0], -1, 8)
    words = torch.zeros(grouped.shape[:2], dtype=torch.int32)
    for nibble, column in enumerate(AWQ_ORDER):
        words |= grouped[:, :, column] << (4 * nibble)
    return words


class NamedTensors(Protocol):
    """The tensors of a model by name; see `Checkpoint`."""

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: torch.dtype | tuple[torch.dtype, ...]) -> Tensor:
        """See `Checkpoint.tensor`."""
        ...


def load_model(
    weights_dir: Path,
    *,
    device: Device = Device.CPU,
    num_threads: int | None = None,
    activations: Activations = Activations.FLOAT32,
) -> LlamaForCausalLM:
    """Read, check and pack a checkpoint, for the kernels that `create_kernels` makes of the other arguments.

    Raises:
        WeightsError: the files are not a model that this engine supports.
        EngineNotAvailableError, SettingError: see `create_kernels`.
    """
    kernels = create_kernels(device, num_threads, activations)
    return load_with_kernels(weights_dir, kernels, device=device.torch_name)


def load_with_kernels(weights_dir: Path, kernels: Kernels, *, device: str = "cpu") -> LlamaForCausalLM:
    """Like `load_model`, with the given kernels. device: torch's name of it."""
    config = read_config(weights_dir)
    checkpoint = TensorFiles(weights_dir)
    model = build_model(config, checkpoint, kernels, device=device)
    ignored = ("rotary_emb.inv_freq", *(("lm_head.weight",) if config.tie_word_embeddings else ()))
    checkpoint.refuse_unused(ignored)
    return model


def build_model(
    config: ModelConfig, tensors: NamedTensors, kernels: Kernels, *, device: str = "cpu"
) -> LlamaForCausalLM:
    """Pack the tensors of a checkpoint, or random ones. device: torch's name of it."""
    return LlamaForCausalLM(config, _Reader(config, tensors, kernels, device).model(), kernels)


class _Reader:
    """Looks up the tensors of a model by name and packs them."""

    def __init__(self, config: ModelConfig, checkpoint: NamedTensors, kernels: Kernels, device: str) -> None:
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
        head = embedding if tied else self._kernels.place_table(self._tensor("lm_head.weight", table, FLOATS))
        return ModelWeights(embedding, decoder, head, self._kernels.make_screen(head))

    def _layer(self, prefix: str) -> DecoderLayerWeights:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        shape = self._config.attention
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = {attention + "q_proj": queries, attention + "k_proj": keys, attention + "v_proj": keys}
        output, down = {attention + "o_proj": hidden}, {mlp + "down_proj": hidden}
        gate_up = {mlp + "gate_proj": inner, mlp + "up_proj": inner}
        bias = self._config.bias
        return DecoderLayerWeights(
            input_norm=self._norm(prefix + "input_layernorm"),
            qkv=self._linear(hidden, qkv),
            output=self._linear(queries, output),
            post_attention_norm=self._norm(prefix + "post_attention_layernorm"),
            gate_up=self._linear(hidden, gate_up),
            down=self._linear(inner, down),
            qkv_adjustment=self._adjustment(attention, qkv),
            output_bias=self._bias(output) if bias.output else None,
            gate_up_bias=self._bias(gate_up) if bias.mlp else None,
            down_bias=self._bias(down) if bias.mlp else None,
        )

    def _tensor(self, name: str, shape: tuple[int, ...], dtypes: torch.dtype | tuple[torch.dtype, ...]) -> Tensor:
        return self._checkpoint.tensor(name, shape, dtypes).to(self._device)

    def _adjustment(self, attention: str, qkv: dict[str, int]) -> QkvAdjustment | None:
        """The biases of queries, keys and values, and the head norms of a Qwen3 layer."""
        config = self._config
        bias = self._bias(qkv) if config.bias.qkv else None
        if config.has_qk_norm:
            size = config.attention.head_dim
            query_norm, key_norm = self._norm(attention + "q_norm", size), self._norm(attention + "k_norm", size)
            return QkvAdjustment(bias, query_norm, key_norm, config.rms_norm_eps)
        return None if bias is None else QkvAdjustment(bias)

    def _bias(self, outputs: dict[str, int]) -> Tensor:
        """The biases of layers that share their input, concatenated along their outputs (name: size)."""
        parts = (self._tensor(f"{name}.bias", (size,), FLOATS).float() for name, size in outputs.items())
        return torch.cat(tuple(parts))

    def _norm(self, name: str, size: int | None = None) -> Tensor:
        return self._tensor(f"{name}.weight", (size or self._config.hidden_size,), FLOATS).float()

    def _linear(self, inputs: int, outputs: dict[str, int]) -> LinearWeight:
        """The weight of layers that share their input, concatenated along their outputs (name: size)."""
        quantization = self._config.quantization
        part = "weight_packed" if quantization is not None and quantization.compressed_tensors else "qweight"
        quantized = [f"{name}.{part}" in self._checkpoint for name in outputs]
        if not any(quantized):
            parts = (self._tensor(f"{name}.weight", (size, inputs), FLOATS) for name, size in outputs.items())
            return DenseWeight(tuple(map(self._kernels.place_linear, parts)))
        if not all(quantized) or quantization is None:
            raise WeightsError(
                f"only some of {', '.join(outputs)} are quantized in the checkpoint, or config.json lacks "
                "quantization_config: rebuild the weights"
            )
        parts_awq = [self._quantized(name, inputs, size, quantization) for name, size in outputs.items()]
        return self._kernels.pack_awq(_join(parts_awq))

    def _quantized(self, name: str, inputs: int, outputs: int, quantization: Quantization) -> AwqTensors:
        """A 4-bit layer in AutoAWQ's layout."""
        group = quantization.group_size
        if inputs % group or outputs % 8:
            raise WeightsError(
                f"{name} has {inputs} inputs and {outputs} outputs with group_size {group}: inputs must be a multiple "
                "of the group size and outputs of 8; quantize with another group size"
            )
        groups = inputs // group
        if quantization.compressed_tensors:
            return self._compressed(name, (outputs, inputs), groups, quantization)
        return AwqTensors(
            qweight=self._tensor(f"{name}.qweight", (inputs, outputs // 8), torch.int32),
            qzeros=self._tensor(f"{name}.qzeros", (groups, outputs // 8), torch.int32),
            scales=self._tensor(f"{name}.scales", (groups, outputs), torch.float16),
            group_size=group,
        )

    def _compressed(self, name: str, shape: tuple[int, int], groups: int, quantization: Quantization) -> AwqTensors:
        """A layer of compressed-tensors. shape: outputs, inputs."""
        outputs, inputs = shape
        stated = self._checkpoint.tensor(f"{name}.weight_shape", (2,), (torch.int64, torch.int32)).tolist()
        if stated != [outputs, inputs]:
            raise WeightsError(f"{name}.weight_shape is {stated}, not {[outputs, inputs]}; fetch the weights again")
        zeros = None
        if not quantization.symmetric:
            zeros = self._checkpoint.tensor(f"{name}.weight_zero_point", (outputs // 8, groups), torch.int32)
        packed = self._checkpoint.tensor(f"{name}.weight_packed", (outputs, inputs // 8), torch.int32)
        scale = self._checkpoint.tensor(f"{name}.weight_scale", (outputs, groups), FLOATS)
        found = awq_tensors(name, packed, scale, zeros, quantization.group_size)  # converted on the CPU
        qweight, qzeros, scales = (part.to(self._device) for part in (found.qweight, found.qzeros, found.scales))
        return AwqTensors(qweight, qzeros, scales, found.group_size)


def _join(parts: list[AwqTensors]) -> AwqTensors:
    if len(parts) == 1:
        return parts[0]
    return AwqTensors(
        qweight=torch.cat([part.qweight for part in parts], dim=1),
        qzeros=torch.cat([part.qzeros for part in parts], dim=1),
        scales=torch.cat([part.scales for part in parts], dim=1),
        group_size=parts[0].group_size,
    )
