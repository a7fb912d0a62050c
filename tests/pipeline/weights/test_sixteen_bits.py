"""Layers that stay in 16 bits: those with the largest errors, in one choice for every way to make the checkpoint."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.compare.plain_weights import PlainWeights, weight_errors
from pipeline.paths import ROOT
from pipeline.plan.memory_budget import read_shape
from pipeline.weights.awq_checkpoint import AwqCheckpoint, quantization_config
from pipeline.weights.awq_search_result import AwqSearchResult, ScaleGroup, load_search_result, save_search_result
from pipeline.weights.error_feedback import Feedback
from pipeline.weights.errors import CheckpointError
from pipeline.weights.quantize_model import quantize_with_earlier_search
from pipeline.weights.safetensors_io import SafetensorsCheckpoint, write_safetensors
from pipeline.weights.sixteen_bits import leave_in_sixteen_bits
from serving.config import Settings
from serving.engine import create_engine
from serving.types import GenerationRequest, SamplingParams
from tests import tiny_tokenizers
from tests.pipeline.weights import quantizing
from tests.pipeline.weights.checkpoint_fixtures import Arrays

GROUP = 32
LAYER = "model.layers.{}.{}_proj"
PROMPTS = ("the slowest traces", "count by name", "last hour", "errors", "café", "12345")


def layer(number: int, *names: str) -> set[str]:
    return {LAYER.format(number, name) for name in names}


def weights(loud: str) -> Arrays:
    """Two layers; the weights of one have a few large values, so that four bits hold the others badly."""
    random, arrays = np.random.default_rng(3), {}
    for number in range(2):
        for name in ("q", "k", "v", "o"):
            arrays[LAYER.format(number, f"self_attn.{name}")] = random.normal(size=(64, 64)).astype(np.float32)
        for name, shape in {"gate": (128, 64), "up": (128, 64), "down": (64, 128)}.items():
            arrays[LAYER.format(number, f"mlp.{name}")] = random.normal(size=shape).astype(np.float32)
    arrays[loud][:, ::GROUP] *= 30
    return Arrays({f"{name}.weight": array for name, array in arrays.items()})


@pytest.mark.parametrize("loud", ["self_attn.k", "self_attn.o", "mlp.up", "mlp.down"])
def test_the_layers_with_the_largest_error_stay_with_those_that_are_computed_with_them(loud: str) -> None:
    together = {"self_attn.k": ("self_attn.q", "self_attn.k", "self_attn.v"), "mlp.up": ("mlp.gate", "mlp.up")}
    found = leave_in_sixteen_bits(weights(LAYER.format(1, loud)), AwqSearchResult(GROUP), 0.21)
    assert found.sixteen_bits >= layer(1, *together.get(loud, (loud,)))


def test_no_more_stays_than_the_share_but_one_group_where_all_are_larger() -> None:
    source, nothing = weights(LAYER.format(0, "mlp.up")), AwqSearchResult(GROUP)
    sizes = {name.removesuffix(".weight"): spec.shape[0] * spec.shape[1] for name, spec in source.specs().items()}
    for share in (0.06, 0.11, 0.3, 1.0):
        chosen = leave_in_sixteen_bits(source, nothing, share).sixteen_bits
        assert 0 < sum(sizes[name] for name in chosen) <= share * sum(sizes.values())
    assert chosen == sizes.keys()
    chosen = leave_in_sixteen_bits(source, nothing, 0.04).sixteen_bits
    assert sum(sizes[name] for name in chosen) == pytest.approx(0.05 * sum(sizes.values()))


def test_the_error_is_that_of_outputs_where_inputs_are_known() -> None:
    """The large values meet inputs that are zero, and a layer that is rounded as well as any other is loud."""
    source = weights(LAYER.format(0, "self_attn.o"))
    nothing = AwqSearchResult(GROUP)
    assert leave_in_sixteen_bits(source, nothing, 0.06).sixteen_bits == layer(0, "self_attn.o")
    norms, factors = np.ones(64, np.float32), np.zeros((2, 64), np.int8)
    silent, loud = norms.copy(), norms.copy()
    silent[1:] = 0  # only the large values are heard, which the grid holds
    loud[::GROUP] = 0
    source.arrays[LAYER.format(1, "self_attn.o") + ".weight"][:, ::GROUP] *= 5
    feedback = [
        Feedback((LAYER.format(0, "self_attn.o"),), silent, factors),
        Feedback((LAYER.format(1, "self_attn.o"),), loud, factors),
    ]
    searched = AwqSearchResult(GROUP, feedback_groups=feedback)
    assert leave_in_sixteen_bits(source, searched, 0.06).sixteen_bits == layer(1, "self_attn.o")


def test_they_keep_awq_s_scales_and_are_named_in_the_configuration() -> None:
    down, up = LAYER.format(0, "mlp.down"), LAYER.format(0, "mlp.up")
    source = weights(down)
    scales = np.linspace(0.5, 2, 128).astype(np.float16)
    search = AwqSearchResult(GROUP, [ScaleGroup(up, (down,), scales)], sixteen_bits=frozenset({down}))
    written = AwqCheckpoint(source, search)
    assert f"{down}.weight" in written.specs() and f"{down}.qweight" not in written.specs()
    np.testing.assert_array_equal(written.load(f"{down}.weight"), source.load(f"{down}.weight") * scales)
    assert quantization_config(search)["modules_to_not_convert"] == [down]
    assert "modules_to_not_convert" not in quantization_config(AwqSearchResult(GROUP))
    with pytest.raises(CheckpointError, match=r"names other\.layer, which the checkpoint does not have"):
        AwqCheckpoint(source, replace(search, sixteen_bits=frozenset({"other.layer"})))


def test_a_search_result_keeps_the_choice_so_that_weights_can_be_rebuilt(tmp_path: Path) -> None:
    search = AwqSearchResult(GROUP, sixteen_bits=frozenset(layer(0, "mlp.down", "self_attn.o")))
    save_search_result(tmp_path / "search", search)
    assert load_search_result(tmp_path / "search").sixteen_bits == search.sixteen_bits


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: `model`, the same as `quantized` with 30 % of the weights in 16 bits, `search` and `report`."""
    folder = tmp_path_factory.mktemp(request.param)
    quantizing.write_model(request.param, folder / "model")
    save_search_result(folder / "earlier", AwqSearchResult(GROUP))
    words = [folder / "model", folder / "quantized", "--reuse-search", folder / "earlier", "--sixteen-bits", "0.3"]
    words += ["--save-search", folder / "search", "--json", folder / "report"]
    command = [sys.executable, str(ROOT / "scripts/quantize_awq"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0 and "% of the linear weights, the worst first: " in done.stderr, done.stderr
    return folder


def test_the_command_says_what_it_left_and_its_search_result_writes_the_same_again(mixed: Path, tmp_path: Path) -> None:
    report = json.loads((mixed / "report").read_text())
    config = json.loads((mixed / "quantized" / "config.json").read_text())
    names = config["quantization_config"]["modules_to_not_convert"]
    assert names == report["sixteen_bits"] and len(names) > 1
    before, after = read_shape(mixed / "model"), read_shape(mixed / "quantized")
    assert before.num_parameters == after.num_parameters
    assert report["bytes_after"] == (mixed / "quantized" / "model.safetensors").stat().st_size

    quantize_with_earlier_search(mixed / "model", tmp_path / "again", mixed / "search", save_search=None)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (mixed / "quantized" / name).read_bytes()


def test_the_comparison_sees_that_they_lost_nothing(mixed: Path) -> None:
    left = load_search_result(mixed / "search").sixteen_bits
    errors = dict(weight_errors(PlainWeights(mixed / "model"), PlainWeights(mixed / "quantized")))
    assert left < errors.keys()
    for name, error in errors.items():
        if name in left:  # the scales between up_proj and down_proj are estimated from the rounded up_proj
            assert error < (0.1 if name.endswith("down_proj") else 1e-3), name
        else:
            assert error > 0.02, name


def test_our_engine_answers_as_with_the_weights_that_the_checkpoint_means(mixed: Path) -> None:
    meant = PlainWeights(mixed / "quantized")
    dense = {name: np.array(meant.load(name)) for name in meant.specs()}
    plain = mixed / "plain"
    write_safetensors(plain / "model.safetensors", Arrays(dense))
    config = json.loads((mixed / "quantized" / "config.json").read_text())
    del config["quantization_config"]
    (plain / "config.json").write_text(json.dumps(config))
    (plain / "tokenizer.json").write_bytes((mixed / "quantized" / "tokenizer.json").read_bytes())
    found = answers(mixed / "quantized")
    assert found == answers(plain)
    assert any(len(set(tokens)) > 1 for tokens in found)
    assert len(SafetensorsCheckpoint(plain).specs()) < len(SafetensorsCheckpoint(mixed / "quantized").specs())


def answers(folder: Path) -> list[tuple[int, ...]]:
    """The tokens that the paged engine answers to each prompt."""
    tokenizer = tiny_tokenizers.byte_level()
    running = create_engine(Settings(engine="paged", weights_dir=folder, dtype="float32", max_model_len=128))

    async def answer(prompt: str) -> tuple[int, ...]:
        request = GenerationRequest(prompt, tuple(tokenizer.encode(prompt)), SamplingParams(max_tokens=12))
        return tuple([token async for output in running.generate(request) for token in output.token_ids])

    async def all_answers() -> list[tuple[int, ...]]:
        return [await answer(prompt) for prompt in PROMPTS]

    try:
        return asyncio.run(all_answers())
    finally:
        running.close()
