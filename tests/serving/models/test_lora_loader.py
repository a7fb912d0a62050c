"""Adapters as PEFT writes them become matrices; what cannot be served on demand is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from serving.errors import WeightsError
from serving.kernels.lora import Projection
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from serving.models.lora_loader import load_lora
from tests.serving.engines.paged.adapter_folders import write_adapter
from tests.serving.models import tiny_checkpoints

STEM = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tiny_checkpoints.save(tiny_checkpoints.tiny_llama(), tmp_path_factory.mktemp("base"))
    return load_with_kernels(folder, ReferenceKernels()).weights.decoder


def load(folder, weights, *, max_rank=64, max_bytes=10**6):
    return load_lora(folder, weights, max_rank=max_rank, max_bytes=max_bytes)


def test_matrices_scaling_and_untouched_projections(tmp_path, weights):
    folder = write_adapter(tmp_path, weights, rank=5, modules=["self_attn.q_proj", "mlp.down_proj"])
    first, second = load(folder, weights).lora.layers
    assert [matrices.rank for matrices in first] == [5, 0, 0, 0, 0, 0, 5]
    assert first[Projection.QUERY].scaling == second[Projection.DOWN].scaling == 2.0
    assert [(m.down.shape[1], m.up.shape[1]) for m in second] == list(weights.projections)


def test_rank_stabilized_scaling_and_patterns(tmp_path, weights):
    config = {"use_rslora": True, "r": 2, "rank_pattern": {"q_proj": 16}, "alpha_pattern": {"layers.0.*q_proj": 8}}
    folder = write_adapter(tmp_path, weights, rank=16, modules=["self_attn.q_proj"], config=config)
    first, second = load(folder, weights).lora.layers
    assert (first[Projection.QUERY].scaling, second[Projection.QUERY].scaling) == (8 / 4, 32 / 4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "use_dora is True, which is not served on demand"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is .*it changes the number of layers"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"init_lora_weights": "pissa"}, "changed the base before training"),
        ({"r": 8}, r"lora_A.weight is F32 \[4, 96\], this model needs .* \[8, 96\]"),
        ({"lora_alpha": "high"}, "lora_alpha of model.layers.0.self_attn.q_proj is 'high'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_configurations_that_are_refused(tmp_path, weights, config, message):
    with pytest.raises(WeightsError, match=message):
        load(write_adapter(tmp_path, weights, modules=["self_attn.q_proj"], config=config), weights)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{STEM}.lora_magnitude_vector", "is DoRA's magnitudes"),
        ("base_model.model.lm_head.lora_A.weight", "is an adapter of the head"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "is an adapter of the embedding"),
        (f"{STEM}.bias", "is a trained bias"),
        ("base_model.model.model.norm.modules_to_save.weight", "is a whole trained layer"),
        ("base_model.model.model.layers.0.mlp.experts.lora_A.weight", "is not part of a linear layer"),
        (STEM.replace("layers.0", "layers.2") + ".lora_A.weight", "this one has 2 layers"),
        (f"{STEM}.lora_A.default.weight", "is there twice"),
        (STEM.replace("q_proj", "k_proj") + ".lora_A.weight", "has only one of A and B"),
    ],
)
def test_tensors_that_are_refused(tmp_path, weights, name, message):
    folder = write_adapter(tmp_path, weights, modules=["self_attn.q_proj"], extra={name: torch.ones(4, 96)})
    with pytest.raises(WeightsError, match=message):
        load(folder, weights)


def test_limits_other_models_and_broken_values(tmp_path, weights):
    folder = write_adapter(tmp_path / "a", weights)
    with pytest.raises(WeightsError, match="has rank 4, the limit is 3; raise max_rank"):
        load(folder, weights, max_rank=3)
    with pytest.raises(WeightsError, match="bytes of tensors, the limit is 1,000"):
        load(folder, weights, max_bytes=1000)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(WeightsError, match="safe_serialization=True"):
        load(folder, weights)
    name = STEM.replace("q_proj", "o_proj") + ".lora_A.weight"
    broken = {name: torch.full((4, 96), float("nan")), name.replace("_A", "_B"): torch.ones(96, 4)}
    with pytest.raises(WeightsError, match="values that are not finite"):
        load(write_adapter(tmp_path / "b", weights, modules=["self_attn.q_proj"], extra=broken), weights)


def test_the_digest_depends_on_both_files(tmp_path, weights):
    digests = {load(write_adapter(tmp_path / str(seed), weights, seed=seed), weights).digest for seed in (1, 1, 2)}
    folder = write_adapter(tmp_path / "other", weights, seed=1, config={"lora_alpha": 9})
    assert json.loads((folder / "adapter_config.json").read_text())["lora_alpha"] == 9
    assert len(digests | {load(folder, weights).digest}) == 3


@pytest.mark.parametrize("alpha", [1e38, -1e38, 1e300])
def test_a_scaling_that_can_only_be_a_mistake_is_refused(tmp_path, weights, alpha):
    with pytest.raises(WeightsError, match="can only be a mistake; correct lora_alpha"):
        load(write_adapter(tmp_path, weights, config={"lora_alpha": alpha}), weights)


def test_files_that_change_while_they_are_read_are_refused(tmp_path, weights, monkeypatch):
    folder = write_adapter(tmp_path, weights)
    read = Path.read_bytes

    def change_first(path):
        if path.name == "adapter_model.safetensors":
            write_adapter(folder, weights, rank=8)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", change_first)
    with pytest.raises(WeightsError, match="changed while it was read"):
        load(folder, weights)
