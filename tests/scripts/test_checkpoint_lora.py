"""A merge gives what PEFT gives, on any machine with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.checkpoint.errors import CheckpointError
from scripts.checkpoint.lora import LoraAdapter, MergedCheckpoint
from scripts.checkpoint.merge import merge_folder
from scripts.checkpoint.safetensors_io import SafetensorsCheckpoint

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def tiny_llama(tie: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tie,
    )
    return LlamaForCausalLM(config)


def base_and_adapter(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> torch.nn.Module:
    """Writes base and adapter as their libraries do; returns PEFT's model."""
    model = tiny_llama().to(dtype)
    model.save_pretrained(folder / "base", max_shard_size="20KB")
    lora = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules=TARGETS, **options))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:  # zeros otherwise
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    lora.save_pretrained(folder / "adapter")
    return lora


@pytest.mark.parametrize("rslora", [False, True])
def test_merge_is_what_peft_merges(tmp_path: Path, rslora: bool) -> None:
    lora = base_and_adapter(tmp_path, use_rslora=rslora)
    expected = lora.merge_and_unload().state_dict()
    layers = merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    assert len(layers) == 2 * len(TARGETS)
    merged = SafetensorsCheckpoint(tmp_path / "out")
    assert len(merged.shards) > 1  # as the base
    assert merged.specs().keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(merged.load(name), tensor.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_merged_folder_loads_in_transformers(tmp_path: Path) -> None:
    lora = base_and_adapter(tmp_path)
    ids = torch.arange(10).reshape(1, 10)
    expected = lora(ids).logits
    merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    found = LlamaForCausalLM.from_pretrained(tmp_path / "out")(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_bf16_is_summed_in_fp32_and_rounded_once(tmp_path: Path) -> None:
    base_and_adapter(tmp_path, dtype=torch.bfloat16)
    merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    base, merged = SafetensorsCheckpoint(tmp_path / "base"), SafetensorsCheckpoint(tmp_path / "out")
    name = "model.layers.1.mlp.up_proj.weight"
    assert merged.specs()[name].dtype == "BF16"
    exact = LoraAdapter(tmp_path / "adapter").merge(name.removesuffix(".weight"), base.load(name))
    expected = torch.from_numpy(exact).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(merged.load(name), expected)


def test_sums_run_over_the_rank_in_order(tmp_path: Path) -> None:
    """Bit for bit what a loop in fp32 gives; a matrix product would depend on the machine."""
    base_and_adapter(tmp_path)
    name = "model.layers.0.mlp.down_proj"
    tensors = load_file(tmp_path / "adapter/adapter_model.safetensors")
    down = tensors[f"base_model.model.{name}.lora_A.weight"].numpy()
    up = tensors[f"base_model.model.{name}.lora_B.weight"].numpy()
    weight = SafetensorsCheckpoint(tmp_path / "base").load(f"{name}.weight")
    found = LoraAdapter(tmp_path / "adapter").merge(name, weight)
    for row, column in [(0, 0), (31, 47), (17, 5)]:
        total = np.float32(0)
        for rank in range(4):
            total = np.float32(total + np.float32(up[row, rank] * down[rank, column]))
        assert found[row, column] == weight[row, column] + total * np.float32(12 / 4)


def test_layers_without_adapter_pass_untouched(tmp_path: Path) -> None:
    base_and_adapter(tmp_path)
    base = SafetensorsCheckpoint(tmp_path / "base")
    merged = MergedCheckpoint(base, LoraAdapter(tmp_path / "adapter"))
    np.testing.assert_array_equal(merged.load("lm_head.weight"), base.load("lm_head.weight"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora is True; only False can be merged"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"r": 0}, "the rank must be 1 or more"),
    ],
)
def test_what_would_be_merged_wrongly_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    base_and_adapter(tmp_path)
    path = tmp_path / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        LoraAdapter(tmp_path / "adapter")


def test_an_incomplete_or_foreign_adapter_is_refused(tmp_path: Path) -> None:
    base_and_adapter(tmp_path)
    file = tmp_path / "adapter/adapter_model.safetensors"
    tensors = load_file(file)
    base = SafetensorsCheckpoint(tmp_path / "base")
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"

    save_file({**tensors, name: tensors[name][:8].clone()}, file)
    with pytest.raises(CheckpointError, match=r"up_proj \[8, 32\], the base has \[48, 32\]"):
        MergedCheckpoint(base, LoraAdapter(tmp_path / "adapter"))
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, file)
    with pytest.raises(CheckpointError, match="only one of A and B"):
        LoraAdapter(tmp_path / "adapter")
    save_file({**tensors, "base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(2, 2)}, file)
    with pytest.raises(CheckpointError, match="no A or B of a plain LoRA"):
        LoraAdapter(tmp_path / "adapter")


def test_a_quantized_base_is_refused(tmp_path: Path) -> None:
    base_and_adapter(tmp_path)
    path = tmp_path / "base/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {}}))
    with pytest.raises(CheckpointError, match="quantized already"):
        merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    assert not (tmp_path / "out").exists()
