"""Training with rounding computes the loss of the quantized weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from pipeline.train.lora_model import LoraModel
from pipeline.train.packing import make_pack
from pipeline.train.rounding import layer_rounding
from pipeline.weights.awq_checkpoint import AwqCheckpoint
from pipeline.weights.awq_format import PackedWeight, dequantize
from pipeline.weights.awq_search_result import CLIP_STEPS, AwqSearchResult, ScaleGroup
from pipeline.weights.merging.lora_adapter import MergedCheckpoint, PeftAdapter
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from tests.pipeline.train.training_fixtures import CONFIG, some_examples, write_base

GROUP = 16


def search_result(seed: int = 0) -> AwqSearchResult:
    """Scales at every place where AWQ puts them, and clips of all layers but q and k."""
    random = np.random.default_rng(seed)

    def scales(size: int) -> np.ndarray:
        return random.uniform(0.5, 2, size).astype(np.float16)

    hidden, middle, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    kv = CONFIG["num_key_value_heads"] * head
    groups, clips = [], {}
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}."
        qkv = tuple(f"{at}self_attn.{name}_proj" for name in "qkv")
        gate, up, down = (f"{at}mlp.{name}_proj" for name in ("gate", "up", "down"))
        groups += [
            ScaleGroup(f"{at}input_layernorm", qkv, scales(hidden)),
            ScaleGroup(f"{at}post_attention_layernorm", (gate, up), scales(hidden)),
            ScaleGroup(up, (down,), scales(middle)),
        ]
        shapes = {qkv[2]: (kv, hidden), gate: (middle, hidden), up: (middle, hidden), down: (hidden, middle)}
        for name, (rows, columns) in shapes.items():
            clips[name] = random.integers(0, CLIP_STEPS // 2, (rows, columns // GROUP), dtype=np.uint8)
    return AwqSearchResult(GROUP, groups, clips)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def model(base: Path) -> LoraModel:
    torch.manual_seed(1)
    model = LoraModel.load(base, 4, 8)
    for parameter in model.parameters():  # the adapter file has fp16
        parameter.data.add_(torch.randn_like(parameter) * 0.05).copy_(parameter.data.half())
    model.refresh()
    return model


def served(base: Path, adapter: Path, search: AwqSearchResult) -> LlamaForCausalLM:
    """The model with the dequantized tensors that scripts/build_weights would write."""
    quantized = AwqCheckpoint(MergedCheckpoint(SafetensorsCheckpoint(base), PeftAdapter(adapter)), search)
    state = {}
    for name in load_file(base / "model.safetensors"):
        linear = name.removesuffix(".weight")
        if f"{linear}.qweight" in quantized.specs():
            packed = PackedWeight(*(quantized.load(f"{linear}.{p}") for p in ("qweight", "qzeros", "scales")))
            state[name] = torch.from_numpy(dequantize(packed, GROUP))
        else:
            state[name] = torch.from_numpy(quantized.load(name).copy())
    llama = LlamaForCausalLM.from_pretrained(base)
    llama.load_state_dict(state, strict=False)
    return llama


@torch.no_grad()
def reference_loss(llama: LlamaForCausalLM) -> float:
    total = 0.0
    for example in some_examples():
        logits = llama(torch.tensor([[*example.prompt, *example.answer]])).logits[0]
        scored = logits[len(example.prompt) - 1 : -1]
        total += float(torch.nn.functional.cross_entropy(scored, torch.tensor(example.answer), reduction="sum"))
    return total


SEARCHES = {
    "plain": AwqSearchResult(GROUP),
    "searched": search_result(),
    "some in 16 bits": replace(
        search_result(),
        sixteen_bits=frozenset(
            f"model.layers.{number}.mlp.{name}_proj" for number in range(2) for name in ("gate", "up", "down")
        ),
    ),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_the_loss_is_that_of_the_weights_that_would_be_served(
    base: Path, model: LoraModel, tmp_path: Path, search: AwqSearchResult
) -> None:
    exact = float(model.loss(make_pack(some_examples())).detach())
    model.save(tmp_path, "base")
    model.round_weights(search)
    rounded = float(model.loss(make_pack(some_examples())).detach())
    wanted = reference_loss(served(base, tmp_path, search))
    # A sum in the middle between two levels may be rounded the other way.
    assert rounded == pytest.approx(wanted, rel=2e-3)
    assert abs(exact - wanted) > 5 * abs(rounded - wanted), "rounding must matter here, or nothing was tested"


def test_a_weight_on_the_grid_stays_and_others_move_less_than_a_step() -> None:
    rounding = layer_rounding(AwqSearchResult(GROUP), "any")
    weight = torch.randn(8, 4 * GROUP, generator=torch.manual_seed(0))
    once = rounding(weight)
    torch.testing.assert_close(rounding(once), once, rtol=1e-3, atol=1e-4)
    steps = (weight.view(8, 4, GROUP).amax(2) - weight.view(8, 4, GROUP).amin(2)) / 15
    assert ((once - weight).view(8, 4, GROUP).abs() <= 1.01 * steps[:, :, None]).all()


def test_gradients_go_straight_through_and_lower_the_rounded_loss(model: LoraModel) -> None:
    model.round_weights(search_result())
    pack, parameters, losses = make_pack(some_examples()), model.parameters(), []
    for _ in range(30):
        loss = model.loss(pack)
        grads = torch.autograd.grad(loss, parameters)
        losses.append(float(loss.detach()))
        norm = torch.cat([g.flatten() for g in grads]).norm()
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.data.sub_(0.02 / norm * grad)
        model.refresh()
    assert losses[-1] < 0.8 * losses[0]
