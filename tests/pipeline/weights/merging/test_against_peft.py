"""A merge of every kind of adapter computes what PEFT computes with it, and equals PEFT's merge where that does too."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PretrainedConfig

from pipeline.weights.merging.merge import merge_folder
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from tests.pipeline.weights.merging.trained_adapters import (
    GPT2,
    IDS,
    LLAMA,
    QWEN,
    TARGETS,
    TIED_LLAMA,
    TIED_QWEN,
    logits,
    trained,
)

PATTERNS = {
    "rank_pattern": {"q_proj": 8, r"layers\.1\.mlp\..*_proj": 2, "layers.0.mlp.down_proj": 3, "proj": 6},
    "alpha_pattern": {r"self_attn\.[qk]_proj": 5, "model.layers.1.mlp.up_proj": 33},
}
SAME_AS_PEFT: dict[str, tuple[PretrainedConfig, dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "qwen": (QWEN, {}),
    "tied": (TIED_LLAMA, {}),
    "rank-stabilized": (LLAMA, {"use_rslora": True}),
    "patterns": (LLAMA, PATTERNS),
    "rank-stabilized patterns": (QWEN, {"use_rslora": True, **PATTERNS}),
    "some layers": (LLAMA, {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "layers"}),
    "dora": (LLAMA, {"use_dora": True}),
    "dora, qwen": (TIED_QWEN, {"use_dora": True, "use_rslora": True, **PATTERNS}),
    "all biases": (QWEN, {"bias": "all"}),
    "biases of LoRA layers": (QWEN, {"bias": "lora_only", "target_modules": ["q_proj", "up_proj"]}),
    "LoRA biases": (QWEN, {"lora_bias": True, "target_modules": ["q_proj", "k_proj"]}),
    "norms and head saved": (LLAMA, {"modules_to_save": ["norm", "input_layernorm", "lm_head"]}),
    "linear layer saved": (LLAMA, {"target_modules": ["q_proj"], "modules_to_save": ["down_proj"]}),
    "head": (LLAMA, {"target_modules": [*TARGETS, "lm_head"]}),
    "embedding": (LLAMA, {"target_modules": [*TARGETS, "embed_tokens"]}),
    "embedding, dora": (LLAMA, {"target_modules": [*TARGETS, "embed_tokens"], "use_dora": True}),
    "tied, head saved": (TIED_LLAMA, {"modules_to_save": ["lm_head"]}),
    "tied, both saved": (TIED_QWEN, {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "tied, embedding saved": (TIED_LLAMA, {"modules_to_save": ["embed_tokens"]}),
    "added tokens": (LLAMA, {"vocabulary": 80, "modules_to_save": ["embed_tokens", "lm_head"]}),
    "added tokens, not trained": (LLAMA, {"vocabulary": 80}),
    "tied, added tokens": (TIED_LLAMA, {"vocabulary": 80}),
    "tied, added tokens trained": (TIED_LLAMA, {"vocabulary": 80, "modules_to_save": ["embed_tokens", "lm_head"]}),
    "tokens": (LLAMA, {"trainable_token_indices": {"embed_tokens": [3, 5], "lm_head": [7]}}),
    "tied tokens": (TIED_QWEN, {"trainable_token_indices": [3, 5, 9]}),
    "new tokens": (LLAMA, {"vocabulary": 66, "trainable_token_indices": {"embed_tokens": [64, 65], "lm_head": [65]}}),
    "tied new tokens": (TIED_QWEN, {"vocabulary": 66, "trainable_token_indices": [64, 65]}),
    "tied on purpose": (TIED_LLAMA, {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "transposed": (GPT2, {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "transposed, dora": (GPT2, {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "use_dora": True}),
}
# PEFT adds the change of one of two tied tensors to both, which is not what the live model computes.
ONLY_LIVE: dict[str, tuple[PretrainedConfig, dict[str, Any]]] = {
    "tied, embedding": (TIED_LLAMA, {"target_modules": [*TARGETS, "embed_tokens"]}),
    "tied, embedding, dora": (TIED_QWEN, {"target_modules": [*TARGETS, "embed_tokens"], "use_dora": True}),
    "tied, head": (TIED_LLAMA, {"target_modules": [*TARGETS, "lm_head"]}),
    "tied, LoRA of both": (
        TIED_LLAMA,
        {"target_modules": [*TARGETS, "embed_tokens"], "ensure_weight_tying": True},
    ),
}


def check_live(folder: Path, config: PretrainedConfig, options: dict[str, Any]) -> torch.nn.Module:
    """Merge, and compare with the live adapter."""
    live = trained(folder, config, **options)
    with torch.no_grad():
        expected = live(input_ids=IDS).logits
    merge_folder(folder / "base", folder / "adapter", folder / "out")
    found = logits(folder / "out")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    base = logits(folder / "base")
    assert (found[..., : base.shape[-1]] - base).abs().max() > 0.1  # the adapter changes something
    return live


@pytest.mark.parametrize("kind", SAME_AS_PEFT)
def test_merge_is_what_peft_merges_and_computes(tmp_path: Path, kind: str) -> None:
    live = check_live(tmp_path, *SAME_AS_PEFT[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        merged = live.merge_and_unload()
    expected = {name: tensor.detach() for name, tensor in merged.state_dict().items()}
    if merged.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    found = SafetensorsCheckpoint(tmp_path / "out")
    assert found.specs().keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found.load(name), tensor.numpy(), rtol=1e-5, atol=2e-6, err_msg=name)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["vocab_size"] == merged.config.vocab_size
    assert config["tie_word_embeddings"] == merged.config.tie_word_embeddings


@pytest.mark.parametrize("kind", ONLY_LIVE)
def test_merged_tied_weights_compute_what_the_live_adapter_computes(tmp_path: Path, kind: str) -> None:
    check_live(tmp_path, *ONLY_LIVE[kind])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["patterns", "dora", "embedding, dora", "all biases", "added tokens"])
def test_half_precision_is_rounded_once(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    """The sum is float32, as in PEFT's merge of the same weights in float32; then it is rounded to the base's type."""
    config, options = SAME_AS_PEFT[kind]
    live = trained(tmp_path, config, dtype=dtype, **options)
    exact = live.float().merge_and_unload().state_dict()
    merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    found = SafetensorsCheckpoint(tmp_path / "out")
    for name, tensor in exact.items():
        rounded = tensor.detach().to(dtype).float().numpy()
        off = found.load(name) != rounded  # float32 sums in another order may round to the next number
        assert off.mean() < 2e-3, name
        np.testing.assert_allclose(found.load(name), rounded, rtol=1e-2, atol=1e-6, err_msg=name)
