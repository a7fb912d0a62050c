"""Adapters that cannot be merged correctly are refused by name, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.merge import merge_folder
from serving.errors import ServingError
from tests.pipeline.weights.merging.trained_adapters import LLAMA, QWEN, trained

Tensors = dict[str, torch.Tensor]
UP = "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"
DOWN = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"


def merge(folder: Path) -> None:
    merge_folder(folder / "base", folder / "adapter", folder / "out")


def edit_config(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'.*merge_and_unload"),
        ({"peft_type": "PREFIX_TUNING"}, "cannot be merged into any weights; train a LoRA"),
        ({"use_dora": True}, "lacks a magnitude vector"),
        ({"r": 0}, "rank of .* is 0; it must be 1 to"),
        ({"r": 8}, r"lora_B.weight is \[.*\], which does not fit the layer's rank 8"),
        ({"rank_pattern": {"up_proj": 3}}, r"up_proj.lora_B.weight is \[48, 4\], which does not fit .* rank 3"),
        ({"rank_pattern": {"up_(proj": 3}}, r"pattern 'up_\(proj' is not valid"),
        ({"alpha_pattern": ["up_proj"]}, "must be objects"),
        ({"lora_alpha": "many"}, "lora_alpha of .* is 'many'"),
        ({"lora_alpha": float("nan")}, "lora_alpha of .* is nan"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters .* merge_and_unload"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens .* activated"),
        ({"use_qalora": True}, "use_qalora"),
        ({"use_new_method": {"a": 1}}, "use_new_method .* an unknown key"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights .* path_initial_model_for_weight_conversion"),
        ({"bias": "some"}, "bias is 'some'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save has lm_head, which was not saved"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is set"),
    ],
)
def test_configurations(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    trained(tmp_path, LLAMA)
    edit_config(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        merge(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {UP: t[UP][:8].clone()}, r"up_proj \[8, 32\], the base has \[48, 32\]"),
        (lambda t: t | {UP: t[UP][:, :3].clone()}, r"up_proj.lora_B.weight is \[48, 3\]"),
        (lambda t: t | {DOWN: t[DOWN][:, :30].clone()}, r"up_proj \[48, 30\], the base has \[48, 32\]"),
        (lambda t: t | {DOWN: t[DOWN].reshape(-1)}, r"up_proj.lora_A.weight is \[128\]"),
        (lambda t: {name: tensor for name, tensor in t.items() if name != UP}, "up_proj has only one of A and B"),
        (lambda t: t | {UP: t[UP] * float("nan")}, "up_proj.lora_B.weight has values that are not finite"),
        (lambda t: t | {DOWN: t[DOWN] + float("inf")}, "up_proj.lora_A.weight has values that are not finite"),
        (lambda t: t | {"other.lora_A.weight": torch.ones(4, 4)}, "'other.lora_A.weight' does not begin"),
        (lambda t: t | {UP.replace("lora_B", "lora_C"): torch.ones(1)}, "lora_C.weight' is unknown"),
        (lambda t: t | {UP.replace("up_proj", "no_proj"): t[UP].clone()}, "no_proj has only one"),
        (lambda t: t | {UP.replace("lora_B.weight", "lora_magnitude_vector"): torch.ones(48)}, "has a magnitude"),
        (lambda t: t | {UP.replace("weight", "bias"): torch.ones(48)}, "no model.layers.0.mlp.up_proj.bias"),
        (lambda t: t | {"base_model.model.score.weight": torch.ones(2, 32)}, "score.weight, .* Heads of classifiers"),
        (
            lambda t: t | {"base_model.model.model.norm.weight": torch.ones(31)},
            r"norm.weight is \[31\], the base's model.norm.weight is \[32\]",
        ),
        (
            lambda t: t | {"base_model.model.model.norm.weight": torch.full((32,), float("nan"))},
            "model.norm.weight has values that are not finite",
        ),
        (
            lambda t: t | {"base_model.model.model.embed_tokens.weight": torch.ones(70, 32)},
            "70 rows and lm_head.weight 64",
        ),
    ],
)
def test_tensors(tmp_path: Path, change: Callable[[Tensors], Tensors], message: str) -> None:
    trained(tmp_path, LLAMA)
    file = tmp_path / "adapter/adapter_model.safetensors"
    save_file(change(load_file(file)), file)
    with pytest.raises(CheckpointError, match=message):
        merge(tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("quantization", "remedy"), [({}, "made from"), ({"quant_method": "bitsandbytes"}, "with --nf4")]
)
def test_quantized_bases(tmp_path: Path, quantization: dict[str, str], remedy: str) -> None:
    trained(tmp_path, LLAMA)
    path = tmp_path / "base/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantization}))
    with pytest.raises(CheckpointError, match=f"quantized already.*{remedy}"):
        merge(tmp_path)


def test_overflow_of_fp16_names_the_tensor(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA, dtype=torch.float16)
    file = tmp_path / "adapter/adapter_model.safetensors"
    save_file({name: 10.0**4 * tensor.float() for name, tensor in load_file(file).items()}, file)
    with pytest.raises(CheckpointError, match=r"_proj\.weight: .*65,504"):
        merge(tmp_path)


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="exists and is not a checkpoint"):
        merge(tmp_path)
    assert (tmp_path / "out/thesis.txt").read_text() == "mine"
    with pytest.raises(CheckpointError, match="is the base or the adapter"):
        merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "base/../base")


def test_tokens_without_a_row_of_the_embedding(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA)
    tokenizer = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 64, "content": "<new>"}]}
    (tmp_path / "adapter/tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match=r"tokens up to 64, .* only 64 rows"):
        merge(tmp_path)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    trained(folder, QWEN, use_dora=True, bias="all", modules_to_save=["norm"])
    return folder


@settings(max_examples=100, phases=[Phase.generate], deadline=None)
@given(data=st.data())
def test_a_damaged_adapter_is_merged_or_refused_with_a_message(sample: Path, data: st.DataObject) -> None:
    """Any change of names, shapes and configuration: never another error, and never a value that is not finite."""
    file, config = sample / "adapter/adapter_model.safetensors", sample / "adapter/adapter_config.json"
    tensors, text = load_file(file), config.read_text()
    original = file.read_bytes()
    name = data.draw(st.sampled_from(sorted(tensors)))
    tensor = tensors.pop(name)
    suffix = data.draw(st.sampled_from(["", ".weight", ".default", ".bias", ".x", "_A"]))
    shape = data.draw(st.sampled_from([tensor.shape, tuple(reversed(tensor.shape)), (1,), (0,), (2, 2), (4, 4, 4)]))
    if not data.draw(st.booleans()):
        fill = data.draw(st.sampled_from([0.0, 1.0, 1e30, float("nan")]))
        tensors[name.removesuffix(".weight") + suffix] = torch.full(tuple(shape), fill)
    key = data.draw(st.sampled_from(sorted(json.loads(text))))
    value = data.draw(st.sampled_from([None, 0, -1, "x", [], ["q_proj"], {"q_proj": 2}, {"q_proj": "x"}, True, 1e400]))
    try:
        save_file(tensors, file)
        edit_config(sample, {key: value})
        merge(sample)
        merged = [load_file(path) for path in (sample / "out").glob("*.safetensors")]
        assert all(torch.isfinite(tensor).all() for shard in merged for tensor in shard.values())
    except (CheckpointError, ServingError) as error:
        assert str(error)
    finally:
        file.write_bytes(original)
        config.write_text(text)
