"""scripts/quantize_awq on a tiny model, in its own environment: the search lowers the error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from pipeline.weights.awq_checkpoint import AwqCheckpoint
from pipeline.weights.awq_format import PackedWeight, dequantize
from pipeline.weights.awq_format import quantize as rounded_to_four_bits
from pipeline.weights.awq_search_result import AwqSearchResult, ScaleGroup, load_search_result, save_search_result
from pipeline.weights.gguf_source import GgufCheckpoint, generation_config, tokenizer_json
from pipeline.weights.safetensors_io import SafetensorsCheckpoint, write_safetensors
from pipeline.weights.tensors import CheckpointTensors, Fingerprinted
from tests.pipeline.weights.checkpoint_fixtures import write_gguf

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.awq
TEXTS = ["the 42 slowest traces of the checkout service", "count errors by the name", "<|im_end|> p99"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model whose inputs have a few channels of large values, as in real models; AWQ is made for these."""
    gguf = GgufCheckpoint(write_gguf(tmp_path / "tiny.gguf"))
    folder = tmp_path / "model"
    write_safetensors(folder / "model.safetensors", gguf)
    for name, value in (
        ("config", gguf.config()),
        ("tokenizer", tokenizer_json(gguf.metadata)),
        ("generation_config", {**generation_config(gguf.metadata), "do_sample": True, "top_p": 0.9}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(value))
    loud = LlamaForCausalLM.from_pretrained(folder)
    for layer in loud.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.data[::16] *= 20
    loud.save_pretrained(folder)
    return folder


def quantize(model: Path, output: Path | None, *options: str) -> subprocess.CompletedProcess[str]:
    calibration = model.parent / "calibration.jsonl"
    calibration.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 20))
    command = [sys.executable, str(ROOT / "scripts/quantize_awq"), str(model)]
    command += [
        *([] if output is None else [str(output)]),
        "--calibration",
        str(calibration),
        "--group-size",
        "32",
        *options,
    ]
    # One thread: on a model this small, threads only wait for each other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


def logits(model: Path, quantized: CheckpointTensors | None = None) -> torch.Tensor:
    """The model's logits on the texts, with the quantized weights if there are any."""
    llama = LlamaForCausalLM.from_pretrained(model)
    if quantized is not None:
        for name, parameter in llama.model.named_parameters(prefix="model"):
            linear = name.removesuffix(".weight")
            if f"{linear}.qweight" in quantized.specs():
                parts = (quantized.load(f"{linear}.{part}") for part in ("qweight", "qzeros", "scales"))
                array = dequantize(PackedWeight(*parts), 32)
            else:
                array = quantized.load(name)
            parameter.data = torch.from_numpy(np.array(array, dtype=np.float32))
    ids = AutoTokenizer.from_pretrained(model)(" ".join(TEXTS), return_tensors="pt").input_ids
    with torch.no_grad():
        return llama(ids).logits


def test_search_beats_plain_rounding_and_its_result_rebuilds_the_same_weights(model: Path, tmp_path: Path) -> None:
    result = quantize(model, tmp_path / "out", "--save-search", str(tmp_path / "search.safetensors"))
    assert result.returncode == 0, result.stderr
    original = SafetensorsCheckpoint(model)
    found, plain = SafetensorsCheckpoint(tmp_path / "out"), AwqCheckpoint(original, AwqSearchResult(32))
    exact = logits(model)
    error_found = (logits(model, found) - exact).square().mean()
    error_plain = (logits(model, plain) - exact).square().mean()
    assert error_found < 0.7 * error_plain

    rebuilt = AwqCheckpoint(original, load_search_result(tmp_path / "search.safetensors"))
    write_safetensors(tmp_path / "rebuilt.safetensors", rebuilt)
    assert (tmp_path / "rebuilt.safetensors").read_bytes() == (tmp_path / "out/model.safetensors").read_bytes()
    before = {path.name for path in tmp_path.iterdir()}
    result = quantize(model, None, "--save-search", str(tmp_path / "alone.safetensors"))
    assert result.returncode == 0 and result.stderr.endswith(f"Wrote {tmp_path / 'alone.safetensors'}\n"), result.stderr
    assert (tmp_path / "alone.safetensors").read_bytes() == (tmp_path / "search.safetensors").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} - before == {"alone.safetensors"}
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert generation["do_sample"] is False
    assert "top_p" not in generation
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["quantization_config"]["group_size"] == 32


def test_weights_that_four_bits_hold_exactly_are_not_scaled(model: Path, tmp_path: Path) -> None:
    """Every scale would make them worse, and AutoAWQ alone has no candidate without scales."""
    llama = LlamaForCausalLM.from_pretrained(model)
    for layer in llama.model.layers:
        for linear in (module for module in layer.modules() if isinstance(module, torch.nn.Linear)):
            for _ in range(2):  # until the largest and the smallest weight of each group are the grid's
                rounded = dequantize(rounded_to_four_bits(linear.weight.detach().numpy(), 32), 32)
                linear.weight.data = torch.from_numpy(rounded)
    llama.save_pretrained(model)
    result = quantize(model, tmp_path / "out", "--save-search", str(tmp_path / "search.safetensors"))
    assert result.returncode == 0, result.stderr
    found = load_search_result(tmp_path / "search.safetensors")
    assert len(found.scale_groups) >= 3
    for group in found.scale_groups:
        np.testing.assert_array_equal(group.scales, 1, err_msg=group.before)


def test_an_earlier_search_result_can_be_used_for_an_adapter_trained_with_it(model: Path, tmp_path: Path) -> None:
    norm, qkv = "model.layers.0.input_layernorm", tuple(f"model.layers.0.self_attn.{n}_proj" for n in "qkv")
    size = SafetensorsCheckpoint(model).specs()[f"{norm}.weight"].shape[0]
    scales = np.linspace(0.5, 2, size).astype(np.float16)
    earlier = AwqSearchResult(32, [ScaleGroup(norm, qkv, scales)], fingerprint="sha256:of-another")
    save_search_result(tmp_path / "earlier", earlier)
    command = [sys.executable, str(ROOT / "scripts/quantize_awq"), str(model), str(tmp_path / "out")]
    command += ["--reuse-search", str(tmp_path / "earlier"), "--save-search", str(tmp_path / "stamped")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    stamped = load_search_result(tmp_path / "stamped")
    assert stamped.fingerprint == Fingerprinted(SafetensorsCheckpoint(model)).fingerprint()
    np.testing.assert_array_equal(stamped.scale_groups[0].scales, scales)
    found = SafetensorsCheckpoint(tmp_path / "out")
    wanted = AwqCheckpoint(SafetensorsCheckpoint(model), stamped)
    for name in wanted.specs():
        np.testing.assert_array_equal(found.load(name), wanted.load(name).astype(found.load(name).dtype))


def test_texts_or_an_earlier_search_result_are_required(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts/quantize_awq"), str(model), str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 2
    assert "--calibration" in result.stderr
    assert "--reuse-search" in result.stderr
    command[3:] = ["--calibration", "texts.jsonl"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 2 and "give OUTPUT" in result.stderr


def test_too_little_calibration_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "short.jsonl").write_text('{"text": "short"}\n')
    result = quantize(model, tmp_path / "out", "--calibration", str(tmp_path / "short.jsonl"))
    assert result.returncode == 1
    assert "at least 512 are needed" in result.stderr
    assert "Traceback" not in result.stderr
