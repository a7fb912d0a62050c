"""Checkpoints are loaded from one file or shards, and every mismatch is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.errors import WeightsError
from serving.kernels.base import AwqTensors, AwqWeight
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from tests.serving.models import tiny_checkpoints
from tests.serving.models.batches import run_whole

TOKENS = list(range(20))


@pytest.fixture
def folder(tmp_path):
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(tie_word_embeddings=True), tmp_path)
    return tmp_path


def load(folder):
    return load_with_kernels(folder, ReferenceKernels())


def change(folder, edit):
    """Rewrite the checkpoint after `edit(tensors)`."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def shard(folder):
    """Split into two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    names, files = sorted(tensors), ("a.safetensors", "b.safetensors")
    weight_map = {name: files[i % 2] for i, name in enumerate(names)}
    for file in files:
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def test_shards_load_as_one_file_does(folder):
    expected = run_whole(load(folder), TOKENS, [20])
    shard(folder)
    assert torch.equal(run_whole(load(folder), TOKENS, [20]), expected)


def test_a_loaded_model_does_not_change_with_its_file(folder):
    """`cp` overwrites a file in place. Reading a mapping of a file that was cut ends the process."""
    file = folder / "model.safetensors"
    model = load(folder)
    expected = run_whole(model, TOKENS, [20])
    file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(run_whole(model, TOKENS, [20]), expected)
    os.truncate(file, 0)
    assert torch.equal(run_whole(model, TOKENS, [20]), expected)


def test_loading_maps_no_file_of_the_checkpoint(folder):
    """Pages of a mapping would count as memory of the process: twice the weights, while a model is packed."""
    seen: list[bool] = []

    class Watched(ReferenceKernels):
        def pack_awq(self, tensors: AwqTensors) -> AwqWeight:
            seen.append(str(folder) in Path("/proc/self/maps").read_text())
            return super().pack_awq(tensors)

    tiny_checkpoints.quantize(folder, tiny_checkpoints.tiny_llama(tie_word_embeddings=True))
    load_with_kernels(folder, Watched())
    assert seen and not any(seen)


def test_quantized_weights_stay_in_4_bits(folder):
    tiny_checkpoints.quantize(folder, tiny_checkpoints.tiny_llama(tie_word_embeddings=True))
    weight = load(folder).weights.decoder.layers[0].gate_up
    assert isinstance(weight, AwqWeight)
    assert weight.quants.nbytes * 2 == weight.in_features * weight.out_features


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks the tensor model\.norm\.weight"),
        (lambda t: t.update({"model.norm.weight": torch.ones(95)}), r"model\.norm\.weight as .*\[95\]"),
        (lambda t: t.update({"model.norm.weight": torch.ones(96).int()}), "int32"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(96)}), r"q_proj\.bias"),
        (lambda t: t.update({"model.layers.2.input_layernorm.weight": torch.ones(96)}), r"layers\.2"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_named(folder, edit, named):
    change(folder, edit)
    with pytest.raises(WeightsError, match=named):
        load(folder)


def test_a_copy_of_the_head_beside_tied_embeddings_is_ignored(folder):
    change(folder, lambda t: t.update({"lm_head.weight": torch.zeros(199, 96)}))
    load(folder)


def test_an_untied_model_needs_its_head(tmp_path):
    tiny_checkpoints.save(tiny_checkpoints.tiny_mistral(), tmp_path)
    change(tmp_path, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(WeightsError, match=r"lm_head\.weight"):
        load(tmp_path)


def test_half_a_quantized_layer_is_refused(folder):
    model = tiny_checkpoints.tiny_llama(tie_word_embeddings=True)
    tiny_checkpoints.quantize(folder, model)
    prefix = "model.layers.1.self_attn.k_proj."

    def dequantize_one(tensors):
        for name in ("qweight", "qzeros", "scales"):
            tensors.pop(prefix + name)
        tensors[prefix + "weight"] = torch.ones(32, 96)

    change(folder, dequantize_one)
    with pytest.raises(WeightsError, match="k_proj"):
        load(folder)


def test_quantized_tensors_without_a_quantization_config_are_refused(folder):
    tiny_checkpoints.quantize(folder, tiny_checkpoints.tiny_llama(tie_word_embeddings=True))
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="lacks quantization_config"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}"])
def test_files_that_are_not_safetensors_are_refused(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match="not a valid safetensors file"):
        load(folder)


def test_no_weights_at_all_are_refused_with_the_remedy(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="build the weights first"):
        load(folder)


@pytest.mark.parametrize("index", ["", "{}", "[]", '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "../b"}}'])
def test_a_broken_index_is_refused(folder, index):
    shard(folder).write_text(index)
    with pytest.raises(WeightsError, match=r"index\.json"):
        load(folder)
