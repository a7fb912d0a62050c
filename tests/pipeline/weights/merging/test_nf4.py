"""NF4 is rounded as in bitsandbytes, and a merge into it computes what QLoRA's live adapter computes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from pipeline.weights.merging.merge import Rounding, merge_folder
from pipeline.weights.merging.nf4 import BLOCK, block_factors, block_maxima
from pipeline.weights.merging.nf4 import round_trip as round_blocks
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from pipeline.weights.tensors import Array
from tests.pipeline.weights.merging.nf4_golden import GOLDEN, SHAPE, golden_weights
from tests.pipeline.weights.merging.trained_adapters import LLAMA, TIED_QWEN, logits, round_trip, trained

EXACT = json.loads(GOLDEN.read_text())


def values(key: str) -> Array:
    return np.frombuffer(base64.b64decode(EXACT[key]), dtype=np.float32)


@pytest.mark.parametrize("double", [False, True])
def test_rounding_is_that_of_bitsandbytes(double: bool) -> None:
    packed = np.frombuffer(base64.b64decode(EXACT["codes"]), dtype=np.uint8)
    codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)
    expected = np.array(EXACT["table"], np.float32)[codes] * np.repeat(values("factors" if double else "maxima"), BLOCK)
    found = round_trip(golden_weights(), double=double)
    if double:  # libraries sum the mean of the maxima in different orders
        np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-5, atol=1e-9)
        np.testing.assert_allclose(found[0, :64], EXACT["double_first_row"], rtol=1e-5, atol=1e-9)
    else:
        np.testing.assert_array_equal(found.reshape(-1), expected)


def test_blocks_are_rounded_equally_in_parts_and_at_once() -> None:
    weights = golden_weights()
    factors = block_factors(block_maxima(weights), double=True)
    parts = [round_blocks(weights[row : row + 3], factors[row * SHAPE[1] // BLOCK :]) for row in range(0, SHAPE[0], 3)]
    np.testing.assert_array_equal(np.concatenate(parts), round_blocks(weights, factors))


@given(st.lists(st.floats(-4, 4, width=32, allow_subnormal=False), min_size=1, max_size=200))
def test_without_double_quantization_each_block_keeps_its_maximum(row: list[float]) -> None:
    weights = np.array(row, dtype=np.float32)
    rounded = round_trip(weights, double=False)
    for begin in range(0, len(row), BLOCK):
        block, found = weights[begin : begin + BLOCK], rounded[begin : begin + BLOCK]
        largest = np.abs(block).max()
        assert np.abs(found).max() == pytest.approx(largest, rel=1e-6)
        assert np.abs(found - block).max() <= largest * 0.16  # half of the widest step, 0.304 / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merge_into_nf4_is_what_qlora_trained(tmp_path: Path, dtype: torch.dtype) -> None:
    """The live model: PEFT's adapter on linear layers that were rounded, all else as in the base."""
    live = trained(tmp_path, TIED_QWEN, dtype=dtype, modules_to_save=["norm"]).float()
    for name, parameter in live.named_parameters():
        if "base_layer.weight" in name:
            parameter.data = torch.from_numpy(round_trip(parameter.data.numpy())).to(dtype).float()
    with torch.no_grad():
        expected = live(input_ids=torch.arange(12).reshape(1, 12)).logits
    report = merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out", Rounding.NF4)
    merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "plain")
    found, plain = (float((logits(tmp_path / name) - expected).abs().max()) for name in ("out", "plain"))
    assert found < (1e-4 if dtype == torch.float32 else 0.1)
    assert plain > 10 * found
    errors = report["differences"]["all"]
    assert errors["nf4_merge"] < 0.01 < errors["plain_merge"]


def test_reported_differences_are_those_of_the_files(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA, dtype=torch.bfloat16, target_modules=["q_proj"])
    report = merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out", Rounding.NF4_SINGLE)
    merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "plain")
    name = "model.layers.0.self_attn.q_proj"
    adapter = load_file(tmp_path / "adapter/adapter_model.safetensors")
    up, down = (adapter[f"base_model.model.{name}.lora_{part}.weight"].double().numpy() for part in "BA")
    base = SafetensorsCheckpoint(tmp_path / "base").load(f"{name}.weight")
    rounded = torch.from_numpy(round_trip(base, double=False)).bfloat16().double().numpy()
    live = rounded + 3 * up @ down
    for way, folder in (("nf4_merge", "out"), ("plain_merge", "plain")):
        merged = SafetensorsCheckpoint(tmp_path / folder).load(f"{name}.weight")
        error = np.linalg.norm(merged - live) / np.linalg.norm(live)
        assert report["differences"]["tensors"][f"{name}.weight"][way] == pytest.approx(error, rel=1e-3)
    tensors = report["differences"]["tensors"]
    assert "model.layers.0.mlp.up_proj.weight" in tensors  # rounded, without an adapter
    assert not any("embed" in name or "lm_head" in name or "norm" in name for name in tensors)
