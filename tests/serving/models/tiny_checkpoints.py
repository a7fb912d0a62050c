"""Tiny random models, in the checkpoint formats of Hugging Face and AutoAWQ."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
TINY = {
    "vocab_size": 199,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


def tiny_llama(**overrides):
    """A random float32 Llama of transformers; the seed is fixed. Biases, if any, are random too."""
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**{**TINY, **overrides})).eval()
    has_biases = model.config.attention_bias or model.config.mlp_bias
    return _randomized(model) if has_biases else model


def tiny_mistral(**overrides):
    """A random float32 Mistral with a sliding window and an untied head."""
    torch.manual_seed(8)
    settings = {**TINY, "sliding_window": 11, "tie_word_embeddings": False, **overrides}
    return MistralForCausalLM(MistralConfig(**settings)).eval()


def tiny_qwen2(**overrides):
    """A random float32 Qwen2; its biases are random too."""
    torch.manual_seed(9)
    return _randomized(Qwen2ForCausalLM(Qwen2Config(**{**TINY, **overrides})).eval())


def tiny_qwen3(**overrides):
    """A random float32 Qwen3 with random head norms, and heads wider than hidden size / heads."""
    torch.manual_seed(10)
    return _randomized(Qwen3ForCausalLM(Qwen3Config(**{**TINY, "head_dim": 24, **overrides})).eval())


def _randomized(model):
    """Set random biases and norms, because transformers initialises them with 0 and 1."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(0.0, 0.3)
        elif name.endswith("norm.weight"):
            parameter.data.normal_(1.0, 0.2)
    return model


def save(model, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write the checkpoint in this dtype; the model's own weights are rounded to it."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).float()
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(model)))
    return folder


def config_of(model) -> dict:
    """config.json as a checkpoint on the hub has it."""
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    return config


def pack_nibbles(values: Tensor) -> Tensor:
    """[R, N] of 0 … 15 → [R, N // 8] int32 in AutoAWQ's order."""
    grouped = values.to(torch.int64).view(values.shape[0], -1, 8)
    packed = sum(grouped[:, :, column] << (4 * nibble) for nibble, column in enumerate(AWQ_ORDER))
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def compress(folder: Path, model, group_size: int = 16, symmetric: bool = True) -> None:
    """Rewrite a checkpoint as llm-compressor's W4A16, and set the model's weights to the dequantized values."""
    tensors = load_file(folder / "model.safetensors")
    parameters = dict(model.named_parameters())
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors.pop(name).float()  # [N, K]
        groups = weight.reshape(weight.shape[0], -1, group_size)
        low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        scales = ((high - low) / 15).half() if not symmetric else (groups.abs().amax(2) / 7.5).half()
        zeros = torch.zeros_like(low) if symmetric else (-8 - low / scales.float()).round().clamp(-8, 7)
        quants = (groups / scales.float()[:, :, None] + zeros[:, :, None]).round().clamp(-8, 7)
        stem = name.removesuffix("weight")
        tensors[stem + "weight_packed"] = pack_in_order(quants.reshape(weight.shape))
        tensors[stem + "weight_scale"] = scales
        tensors[stem + "weight_shape"] = torch.tensor(weight.shape)
        if not symmetric:
            tensors[stem + "weight_zero_point"] = pack_in_order(zeros.T).T
        meant = (quants - zeros[:, :, None]) * scales.float()[:, :, None]
        parameters[name].data = meant.reshape(weight.shape)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group_size}
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))


def pack_in_order(values: Tensor) -> Tensor:
    """[R, C] of -8 … 7 → [R, C // 8] int32, lowest nibble first, each plus 8 (compressed_tensors.pack_to_int32)."""
    grouped = (values.to(torch.int64) + 8).reshape(values.shape[0], -1, 8)
    packed = sum(grouped[:, :, i] << (4 * i) for i in range(8))
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


# Two groups that are computed as one: their layers have the same bits.
SIXTEEN_BITS = ("model.layers.0.mlp.down_proj", *(f"model.layers.1.self_attn.{name}_proj" for name in "qkv"))


def quantize(folder: Path, model, group_size: int = 16, sixteen_bits: tuple[str, ...] = ()) -> None:
    """Rewrite a checkpoint as AWQ, rounded to nearest, and set the model's weights to the dequantized values.

    The layers `sixteen_bits` stay as they are.
    """
    tensors = load_file(folder / "model.safetensors")
    parameters = dict(model.named_parameters())
    kept = {f"{name}.weight" for name in sixteen_bits}
    for name in [name for name in tensors if name.endswith("_proj.weight") and name not in kept]:
        weight = tensors.pop(name).float().T  # [K, N]
        groups = weight.reshape(-1, group_size, weight.shape[1])
        low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float()).round().clamp(0, 15)
        quants = (groups / scales.float()[:, None] + zeros[:, None]).round().clamp(0, 15)
        stem = name.removesuffix("weight")
        tensors[stem + "qweight"] = pack_nibbles(quants.reshape(weight.shape))
        tensors[stem + "qzeros"] = pack_nibbles(zeros)
        tensors[stem + "scales"] = scales
        meant = ((quants - zeros[:, None]) * scales.float()[:, None]).reshape(weight.shape)
        parameters[name].data = meant.T.contiguous()
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": list(sixteen_bits) or None,
    }
    (folder / "config.json").write_text(json.dumps(config))
