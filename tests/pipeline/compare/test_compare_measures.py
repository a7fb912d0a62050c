"""The measures of a comparison: dequantized weights, scales that cancel, and logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from pipeline.compare.compare_checkpoints import Limits, compare_checkpoints, failures
from pipeline.compare.divergence import divergences
from pipeline.compare.plain_weights import PlainWeights, weight_errors
from pipeline.weights.errors import CheckpointError
from tests.serving.models import tiny_checkpoints

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4}
PACKED: dict[str, Callable[[Path, Any], None]] = {
    "awq": tiny_checkpoints.quantize,
    "symmetric": lambda folder, model: tiny_checkpoints.compress(folder, model, symmetric=True),
    "asymmetric": lambda folder, model: tiny_checkpoints.compress(folder, model, symmetric=False),
}
TEXTS = [([5, 9, 2, 7, 7, 30, 4], 3), ([1, 8], 1), ([77, 150, 3, 99, 14, 12, 6, 5, 180, 11, 2], 8)]


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A changed copy of a checkpoint."""
    copy = folder.with_name(folder.name + "-changed")
    copy.mkdir()
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, copy / "model.safetensors")
    (copy / "config.json").write_bytes((folder / "config.json").read_bytes())
    return copy


@pytest.mark.parametrize("packing", PACKED)
def test_packed_layers_are_dequantized(packing: str, tmp_path: Path) -> None:
    model = tiny_checkpoints.tiny_qwen2()
    tiny_checkpoints.save(model, tmp_path)
    PACKED[packing](tmp_path, model)  # also sets the model's weights to the dequantized values
    weights, meant = PlainWeights(tmp_path), model.state_dict()
    assert weights.specs().keys() == meant.keys()
    for name, spec in weights.specs().items():
        assert spec.shape == tuple(meant[name].shape)
        np.testing.assert_allclose(weights.load(name), meant[name].numpy(), rtol=1e-5, atol=1e-6)


def test_scales_that_cancel_are_no_error(tmp_path: Path) -> None:
    """AWQ scales weights so before it rounds them."""
    tiny_checkpoints.save(tiny_checkpoints.tiny_qwen2(**SMALL), tmp_path / "model")

    def scale(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(2):
            prefix, scales = f"model.layers.{layer}.", torch.rand(96) * 4 + 0.2
            tensors[f"{prefix}input_layernorm.weight"] /= scales[:64]
            for name in "qkv":
                tensors[f"{prefix}self_attn.{name}_proj.weight"] *= scales[:64]
            tensors[f"{prefix}self_attn.v_proj.weight"] /= scales[:64, None]
            tensors[f"{prefix}self_attn.o_proj.weight"] *= scales[:64]
            tensors[f"{prefix}mlp.up_proj.weight"] /= scales[:, None]
            tensors[f"{prefix}mlp.down_proj.weight"] *= scales

    scaled = change(tmp_path / "model", scale)
    errors = dict(weight_errors(PlainWeights(tmp_path / "model"), PlainWeights(scaled)))
    assert len(errors) == 2 * 7
    assert max(errors.values()) < 1e-5


def test_a_layer_that_differs_is_found_with_its_relative_error(tmp_path: Path) -> None:
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(), tmp_path / "model")

    def disturb(tensors: dict[str, torch.Tensor]) -> None:
        weight = tensors["model.layers.1.self_attn.o_proj.weight"]
        noise = torch.randn_like(weight)
        weight += 0.1 * noise * weight.norm() / noise.norm()

    changed = change(tmp_path / "model", disturb)
    errors = dict(weight_errors(PlainWeights(tmp_path / "model"), PlainWeights(changed)))
    assert errors.pop("model.layers.1.self_attn.o_proj") == pytest.approx(0.1, rel=1e-3)
    assert max(errors.values()) < 1e-6


def test_other_checkpoints_are_refused_by_name(tmp_path: Path) -> None:
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(), tmp_path / "a")
    tiny_checkpoints.save(tiny_checkpoints.tiny_qwen2(), tmp_path / "b")
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(intermediate_size=96), tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"k_proj\.bias"):
        list(weight_errors(PlainWeights(tmp_path / "a"), PlainWeights(tmp_path / "b")))
    with pytest.raises(CheckpointError, match=r"down_proj.weight is \[96, 160\] and \[96, 96\]"):
        list(weight_errors(PlainWeights(tmp_path / "a"), PlainWeights(tmp_path / "c")))


LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 64
MODELS = {
    "llama3": lambda: tiny_checkpoints.tiny_llama(rope_parameters=LLAMA3),
    "mistral": tiny_checkpoints.tiny_mistral,
    "qwen2-tied": lambda: tiny_checkpoints.tiny_qwen2(tie_word_embeddings=True),
    "qwen3": tiny_checkpoints.tiny_qwen3,
}


@pytest.mark.parametrize("name", MODELS)
def test_divergence_computed_by_layers_equals_that_of_whole_models(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    tiny_checkpoints.save(model, tmp_path / "before")
    rows = [_logprobs(model, ids, start) for ids, start in TEXTS]
    tiny_checkpoints.save(model, tmp_path / "after")
    tiny_checkpoints.quantize(tmp_path / "after", model)
    first, second = torch.cat(rows), torch.cat([_logprobs(model, ids, start) for ids, start in TEXTS])
    (found,) = divergences(PlainWeights(tmp_path / "before"), [PlainWeights(tmp_path / "after")], TEXTS)
    assert found.positions == len(first) == 4 + 1 + 3
    expected = functional.kl_div(second, first, log_target=True, reduction="batchmean")
    assert found.kl == pytest.approx(float(expected), rel=1e-3)
    assert found.kl > 1e-4
    assert found.top1 == pytest.approx(float((first.argmax(1) == second.argmax(1)).float().mean()))


def _logprobs(model: Any, ids: list[int], start: int) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, start - 1 : -1], dim=1)


def test_each_exceeded_limit_is_named_with_its_value() -> None:
    measures = {"valid": {"points": 0.0, "interval": [0, 0]}, "exact": {"points": -7.5, "interval": [-12.0, -3.0]}}
    report = {
        "weights": {"worst": {"layer": "model.layers.3.mlp.down_proj", "error": 0.3}},
        "logits": {"kl": 0.02},
        "scores": {"cases": 80, "measures": measures},
    }
    weights, score = failures(report, Limits(weights=0.25, logits=0.1, score=5))
    assert weights == "the weights of model.layers.3.mlp.down_proj differ by 0.300; the limit is 0.25, passed by 0.05"
    assert "exact fell by 7.5 points of 80 cases (95 % interval -12.0 to -3.0); the limit is 5, passed by 2.5" in score
    assert failures(report, Limits(weights=0.3, logits=0.1, score=7.5)) == []
    (logits,) = failures({**report, "scores": None}, Limits(weights=0.5, logits=0.015))
    assert logits == "the logits diverge by 0.0200 nats; the limit is 0.015, passed by 0.005"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_within_no_limit(value: float) -> None:
    report = {
        "weights": {"worst": {"layer": "x", "error": value}},
        "logits": {"kl": value},
        "scores": {"cases": 80, "measures": {"exact": {"points": value, "interval": [value, value]}}},
    }
    weights, logits, score = failures(report, Limits(weights=math.inf, logits=math.inf, score=math.inf))
    assert weights == f"the weights of x differ by {value:.3f}; the limit is inf"
    assert logits == f"the logits diverge by {value:.4f} nats; the limit is inf"
    assert score.startswith(f"the score exact fell by {-value:.1f} points")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj"])
def test_a_weight_that_is_no_number_makes_the_worst_error_none(name: str, value: float, tmp_path: Path) -> None:
    """Also in a layer of zeros, whose error is not relative."""
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(), tmp_path / "plain")
    before = change(tmp_path / "plain", lambda tensors: tensors["model.layers.1.self_attn.q_proj.weight"].zero_())

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"].mul_(-1)  # a finite error that is larger than the others
        tensors[f"{name}.weight"][3, 5] = value

    worst = compare_checkpoints(before, change(before, spoil), limits=Limits())["weights"]["worst"]
    assert worst["layer"].startswith(name.rpartition(".")[0])
    assert not math.isfinite(worst["error"])
