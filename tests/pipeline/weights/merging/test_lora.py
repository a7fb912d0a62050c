"""A merge sums B·A in float32 in a fixed order, so that all machines write the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from pipeline.weights.merging.lora_adapter import MergedCheckpoint, PeftAdapter
from pipeline.weights.merging.merge import merge_folder
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from tests.pipeline.weights.merging.trained_adapters import LLAMA, trained


def test_bf16_is_summed_in_fp32_and_rounded_once(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA, dtype=torch.bfloat16)
    merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    base, merged = SafetensorsCheckpoint(tmp_path / "base"), SafetensorsCheckpoint(tmp_path / "out")
    name = "model.layers.1.mlp.up_proj.weight"
    assert merged.specs()[name].dtype == "BF16"
    exact = PeftAdapter(tmp_path / "adapter").change(name.removesuffix(".weight")).merge(base.load(name))
    expected = torch.from_numpy(exact).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(merged.load(name), expected)
    in_memory = MergedCheckpoint(base, PeftAdapter(tmp_path / "adapter"))
    np.testing.assert_array_equal(in_memory.load(name), exact)


def test_sums_run_over_the_rank_in_order(tmp_path: Path) -> None:
    """The bits of a loop in fp32; a matrix product would depend on the machine."""
    trained(tmp_path, LLAMA)
    name = "model.layers.0.mlp.down_proj"
    tensors = load_file(tmp_path / "adapter/adapter_model.safetensors")
    down = tensors[f"base_model.model.{name}.lora_A.weight"].numpy()
    up = tensors[f"base_model.model.{name}.lora_B.weight"].numpy()
    weight = SafetensorsCheckpoint(tmp_path / "base").load(f"{name}.weight")
    found = PeftAdapter(tmp_path / "adapter").change(name).merge(weight)
    for row, column in [(0, 0), (31, 47), (17, 5)]:
        total = np.float32(0)
        for rank in range(4):
            total = np.float32(total + np.float32(up[row, rank] * down[rank, column]))
        assert found[row, column] == weight[row, column] + total * np.float32(12 / 4)


def test_layers_without_adapter_are_not_changed(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA)
    base = SafetensorsCheckpoint(tmp_path / "base")
    merged = MergedCheckpoint(base, PeftAdapter(tmp_path / "adapter"))
    np.testing.assert_array_equal(merged.load("lm_head.weight"), base.load("lm_head.weight"))
