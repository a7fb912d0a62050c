"""Writes tiny random models and adapters with transformers and PEFT.

live = trained(tmp_path, LLAMA, target_modules=["q_proj"]); merge_folder(tmp_path / "base", tmp_path / "adapter", …)
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)

from pipeline.weights.merging.nf4 import block_factors, block_maxima
from pipeline.weights.merging.nf4 import round_trip as nf4_round_trip
from pipeline.weights.tensors import Array

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
IDS = torch.arange(12).reshape(1, 12)
_SHAPE: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2},
}
LLAMA = LlamaConfig(**_SHAPE, tie_word_embeddings=False)
TIED_LLAMA = LlamaConfig(**_SHAPE, tie_word_embeddings=True)
QWEN = Qwen2Config(**_SHAPE, tie_word_embeddings=False)
TIED_QWEN = Qwen2Config(**_SHAPE, tie_word_embeddings=True)
GPT2 = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2)


def write_base(folder: Path, config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Write a random model in several shards; returns it as it is loaded again."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # zeros otherwise
            parameter.data.normal_()
    model.save_pretrained(folder, max_shard_size="20KB")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def trained(
    folder: Path,
    config: PretrainedConfig,
    dtype: torch.dtype = torch.float32,
    vocabulary: int | None = None,
    **options: Any,
) -> PeftModel:
    """Write `base` and `adapter` with random values in all parameters of the adapter; returns PEFT's live model."""
    model = write_base(folder / "base", config, dtype)
    if vocabulary is not None:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's advice on tied embeddings
        live = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 12, "target_modules": TARGETS} | options))
        generator = torch.Generator().manual_seed(1)
        for parameter in live.parameters():
            if parameter.requires_grad:
                parameter.data += (torch.randn(parameter.shape, generator=generator) * 0.1).to(parameter.dtype)
        live.save_pretrained(folder / "adapter")
    return live.eval()


def logits(folder: Path) -> torch.Tensor:
    """A checkpoint's logits in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(IDS).logits


def round_trip(weights: Array, *, double: bool = True) -> Array:
    return nf4_round_trip(weights, block_factors(block_maxima(weights), double=double))
