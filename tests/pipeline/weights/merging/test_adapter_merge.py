"""Merged adapters are what PEFT's add_weighted_adapter makes, and PEFT loads them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.adapter_merge import merge_adapters
from serving.adapters.combination import Combination
from tests.pipeline.weights.merging.trained_adapters import IDS, LLAMA, QWEN, write_base

ROOT = Path(__file__).resolve().parents[4]
OTHER_MODULES = {"target_modules": ["v_proj", "down_proj"]}
CASES = {
    "linear": ({}, {}, ("linear", None)),
    "ties": ({}, {"lora_alpha": 3}, ("ties", 0.4)),
    "cat": ({}, {"r": 2, "lora_alpha": 5}, ("cat", None)),
    "rank-stabilized": ({"use_rslora": True}, {}, ("ties", 0.7)),
    "other modules": ({}, OTHER_MODULES, ("linear", None)),
    "other modules, cat": ({}, {**OTHER_MODULES, "r": 3}, ("cat", None)),
    "patterns": ({"alpha_pattern": {"q_proj": 7}}, {"alpha_pattern": {"layers.1.*": 2}}, ("ties", 0.5)),
}


@pytest.fixture
def base(tmp_path):
    return write_base(tmp_path / "base", LLAMA)


def write(model, folder, seed, **options):
    """A random adapter as PEFT saves it."""
    live = get_peft_model(
        model, LoraConfig(**{"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj"]} | options)
    )
    generator = torch.Generator().manual_seed(seed)
    for parameter in live.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it saves the embedding too
        live.save_pretrained(folder)
    live.unload()
    return folder


def load(tmp_path, folder, name="default"):
    """A new base with an adapter; a tensor that is missing or unexpected is an error."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return PeftModel.from_pretrained(model, folder, adapter_name=name).eval()


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def recipe(method, density=None, weights=(0.7, -0.4)):
    return Combination(method, ("a", "b"), weights, density)


@pytest.mark.parametrize("case", CASES)
def test_factors_and_logits_are_those_of_peft(tmp_path, base, case):
    first, second, (method, density) = CASES[case]
    folders = [write(base, tmp_path / "a", 1, **first), write(base, tmp_path / "b", 2, **second)]
    merge_adapters(folders, recipe(method, density), tmp_path / "out")
    live = load(tmp_path, folders[0], "a")
    live.load_adapter(folders[1], "b")
    live.add_weighted_adapter(["a", "b"], [0.7, -0.4], "both", combination_type=method, density=density)
    live.set_adapter("both")
    found = load_file(tmp_path / "out" / "adapter_model.safetensors")
    layers = [
        (name, layer) for name, layer in live.base_model.model.named_modules() if "both" in getattr(layer, "lora_A", {})
    ]
    assert {f"base_model.model.{name}.lora_{factor}.weight" for name, _ in layers for factor in "AB"} == set(found)
    for name, layer in layers:
        # PEFT 0.21 applies the scaling twice if it is rank-stabilized: the factors have it already.
        assert layer.scaling["both"] == (2.0 if case == "rank-stabilized" else 1.0)
        layer.scaling["both"] = 1.0
        a, b = (found[f"base_model.model.{name}.lora_{factor}.weight"] for factor in "AB")
        torch.testing.assert_close(
            a, layer.lora_A["both"].weight.data[: len(a)], rtol=1e-6, atol=1e-8
        )  # padded by zeros
        torch.testing.assert_close(b, layer.lora_B["both"].weight.data[:, : len(a)], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(logits(load(tmp_path, tmp_path / "out")), logits(live), rtol=1e-4, atol=1e-5)


def test_layers_that_only_one_adapter_changes(tmp_path, base):
    """PEFT fails here: its new adapter would have v_proj in layer 0 too, which neither of the two has."""
    folders = [
        write(base, tmp_path / "a", 1, target_modules=["q_proj"]),
        write(base, tmp_path / "b", 2, target_modules=["v_proj"], layers_to_transform=[1], layers_pattern="layers"),
    ]
    merge_adapters(folders, recipe("cat"), tmp_path / "out")
    merged, *parts = (load(tmp_path, folder).merge_and_unload() for folder in (tmp_path / "out", *folders))
    for name, tensor in merged.state_dict().items():
        plain = base.state_dict()[name]
        one, two = (part.state_dict()[name] - plain for part in parts)
        torch.testing.assert_close(tensor - plain, 0.7 * one - 0.4 * two, rtol=1e-4, atol=1e-6)


def test_a_mean_keeps_the_configuration_and_other_methods_have_scaling_one(tmp_path, base):
    folders = [write(base, tmp_path / name, seed, use_rslora=True) for seed, name in enumerate("ab")]
    merge_adapters(folders, recipe("mean", weights=(1.0, 1.0)), tmp_path / "mean")
    config = json.loads((tmp_path / "mean" / "adapter_config.json").read_text())
    assert config == json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    one, two, mean = (load_file(f / "adapter_model.safetensors") for f in (*folders, tmp_path / "mean"))
    assert all(torch.allclose(mean[name], (one[name] + two[name]) / 2) for name in mean)
    merge_adapters(folders, recipe("linear"), tmp_path / "linear")
    config = json.loads((tmp_path / "linear" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config.get("use_rslora")) == (4, 4, None)


def test_the_widest_type_is_kept(tmp_path, base):
    folders = [write(base, tmp_path / name, seed) for seed, name in enumerate("ab")]
    path = folders[0] / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    merge_adapters(folders, recipe("linear"), tmp_path / "mixed")
    merge_adapters([folders[0], shutil.copytree(folders[0], tmp_path / "c")], recipe("linear"), tmp_path / "half")
    for name, dtype in (("mixed", torch.float32), ("half", torch.bfloat16)):
        assert {t.dtype for t in load_file(tmp_path / name / "adapter_model.safetensors").values()} == {dtype}


def test_companion_files_are_copied_where_the_adapters_agree(tmp_path, base):
    folders = [write(base, tmp_path / name, seed) for seed, name in enumerate("ab")]
    for folder in folders:
        (folder / "tokenizer.json").write_text("{}")
    (folders[1] / "chat_template.jinja").write_text("x")
    merge_adapters(folders, recipe("linear"), tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "x"
    (folders[0] / "tokenizer.json").write_text("{ }")
    with pytest.raises(CheckpointError, match=r"b/tokenizer\.json differs from .*a/tokenizer\.json"):
        merge_adapters(folders, recipe("linear"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, "b uses DoRA"),
        ({"modules_to_save": ["lm_head"]}, "b has whole trained tensors"),
        ({"bias": "lora_only"}, "b has whole trained tensors"),
        ({"lora_bias": True}, "b has biases of LoRA layers"),
        ({"trainable_token_indices": [1, 2]}, "b has trained rows of an embedding"),
        ({"target_modules": ["embed_tokens"]}, "b has .* and cannot be combined"),
    ],
    ids=str,
)
def test_adapters_that_are_refused(tmp_path, options, message):
    base = write_base(tmp_path / "base", QWEN)  # it has biases
    folders = [write(base, tmp_path / "a", 1), write(base, tmp_path / "b", 2, **options)]
    with pytest.raises(CheckpointError, match=message):
        merge_adapters(folders, recipe("linear"), tmp_path / "out")


def test_the_command_writes_an_adapter_or_says_what_is_wrong(tmp_path, base):
    folders = [str(write(base, tmp_path / name, seed)) for seed, name in enumerate("ab")]

    def run(*options):
        command = [
            sys.executable,
            str(ROOT / "scripts/merge_adapters"),
            *folders,
            "--out",
            str(tmp_path / "out"),
            *options,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    wrong = run("--method", "ties", "--density", "0.5", "--weights", "1,two")
    assert wrong.returncode == 2
    assert "1,two must be numbers" in wrong.stderr
    wrong = run("--method", "ties")
    assert wrong.returncode == 1
    assert "error: density is missing" in wrong.stderr
    done = run("--method", "dare_linear", "--density", "0.5", "--weights", "1,-0.5", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "Merged 2 adapters of 4 layers" in done.stderr
    load(tmp_path, tmp_path / "out")


def test_an_output_that_has_files_is_left_alone(tmp_path, base):
    folders = [write(base, tmp_path / name, seed) for seed, name in enumerate("ab")]
    with pytest.raises(CheckpointError, match="a exists and is not an empty folder; remove it"):
        merge_adapters(folders, recipe("linear"), folders[0])
    (tmp_path / "empty").mkdir()
    merge_adapters(folders, recipe("linear"), tmp_path / "empty")
    assert len(list((tmp_path / "empty").iterdir())) == 2
