"""The mean of adapters is that of their tensors; adapters of different runs are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline.weights.average import average_adapters
from pipeline.weights.errors import CheckpointError

SHAPES = {"layer.lora_A.weight": (4, 8), "layer.lora_B.weight": (6, 4)}


def write_adapter(folder: Path, seed: int, *, rank: int = 4, shapes: dict[str, tuple[int, int]] = SHAPES) -> Path:
    rng = np.random.default_rng(seed)
    tensors = {name: rng.normal(size=shape).astype(np.float16) for name, shape in shapes.items()}
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": 8}))
    return folder


def test_the_mean_of_three_adapters(tmp_path):
    folders = [write_adapter(tmp_path / str(seed), seed) for seed in range(3)]
    average_adapters(folders, tmp_path / "mean")
    mean = load_file(tmp_path / "mean" / "adapter_model.safetensors")
    assert set(mean) == set(SHAPES)
    parts = [load_file(folder / "adapter_model.safetensors") for folder in folders]
    for name, tensor in mean.items():
        assert tensor.dtype == np.float16
        exact = sum(part[name].astype(np.float64) for part in parts) / 3
        np.testing.assert_allclose(tensor, exact, rtol=1e-3, atol=1e-6)
    assert json.loads((tmp_path / "mean" / "adapter_config.json").read_text())["r"] == 4


def test_the_mean_of_one_adapter_is_itself(tmp_path):
    folder = write_adapter(tmp_path / "a", 1)
    average_adapters([folder], tmp_path / "mean")
    before, after = (load_file(f / "adapter_model.safetensors") for f in (folder, tmp_path / "mean"))
    assert all(np.array_equal(before[name], after[name]) for name in SHAPES)


def test_adapters_of_different_runs_are_refused(tmp_path):
    folder = write_adapter(tmp_path / "a", 1)
    unrelated = [
        write_adapter(tmp_path / "rank", 2, rank=8),
        write_adapter(tmp_path / "shape", 2, shapes={**SHAPES, "layer.lora_A.weight": (4, 9)}),
        write_adapter(tmp_path / "fewer", 2, shapes={"layer.lora_A.weight": (4, 8)}),
    ]
    for other in unrelated:
        with pytest.raises(CheckpointError, match="differ in shape or configuration"):
            average_adapters([folder, other], tmp_path / "mean")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "adapter_model.safetensors").write_bytes(b"half a")
    for nothing in ("nowhere", "broken"):
        with pytest.raises(CheckpointError, match=f"{nothing} is not an adapter"):
            average_adapters([folder, tmp_path / nothing], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()
