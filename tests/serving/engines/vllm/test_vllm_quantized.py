"""vLLM reads the four-bit checkpoints that our engine reads, and where its kernels run, answers as ours does."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.config import Settings
from serving.engine import create_engine
from serving.types import GenerationRequest, SamplingParams
from tests import tiny_tokenizers
from tests.pipeline.weights import quantizing
from tests.serving.engines.vllm.four_bit_kernels import NEEDS_KERNELS
from tests.serving.models import tiny_checkpoints

pytestmark = pytest.mark.vllm
GROUP_SIZE = 32
# vLLM's attention on a CPU takes heads of 32, 64, 80 … values.
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2}


def search_scales(folder: Path, model: Any) -> None:
    """What scripts/quantize_awq makes of the model in the folder."""
    plain, output = folder / "plain", folder / "output"
    plain.mkdir()
    for path in list(folder.iterdir()):
        if path.is_file():
            path.rename(plain / path.name)
    done = quantizing.quantize(plain, output, "--group-size", str(GROUP_SIZE))
    assert done.returncode == 0, done.stderr
    for path in output.iterdir():
        path.rename(folder / path.name)
    shutil.rmtree(plain)


def leave_some(folder: Path, model: Any) -> None:
    """AWQ with two groups of layers in 16 bits."""
    tiny_checkpoints.quantize(folder, model, GROUP_SIZE, tiny_checkpoints.SIXTEEN_BITS)


PACKINGS: dict[str, Callable[[Path, Any], None]] = {
    "awq": lambda folder, model: tiny_checkpoints.quantize(folder, model, GROUP_SIZE),
    "some in 16 bits": leave_some,
    "quantize_awq": search_scales,
    "symmetric": lambda folder, model: tiny_checkpoints.compress(folder, model, GROUP_SIZE, symmetric=True),
    "asymmetric": lambda folder, model: tiny_checkpoints.compress(folder, model, GROUP_SIZE, symmetric=False),
}
PROMPTS = ("the slowest traces", "count by name", "last hour", "errors", "café", "12345")


# The search takes half a minute, so it is made only where both tests run.
MARKS = {"quantize_awq": (pytest.mark.awq, NEEDS_KERNELS)}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in PACKINGS])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny Qwen2, which has biases, in one of the formats."""
    tokenizer = tiny_tokenizers.byte_level()
    model = tiny_checkpoints.tiny_qwen2(**SIZES, vocab_size=tokenizer.vocab_size, eos_token_id=0)
    tiny_checkpoints.save(model, tmp_path)
    tiny_tokenizers.save(tokenizer, tmp_path)
    PACKINGS[request.param](tmp_path, model)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "torch_dtype": "float16", "dtype": "float16"}))
    return tmp_path


def test_vllm_takes_the_configuration(checkpoint: Path) -> None:
    from vllm.model_executor.layers.quantization import get_quantization_config

    config = json.loads((checkpoint / "config.json").read_text())["quantization_config"]
    read = get_quantization_config(config["quant_method"]).from_config(config)
    if config["quant_method"] == "awq":
        assert (read.weight_bits, read.group_size, read.zero_point) == (4, GROUP_SIZE, True)
        assert read.modules_to_not_convert == (config.get("modules_to_not_convert") or [])
        return
    weights = read.target_scheme_map["Linear"]["weights"]
    assert (weights.num_bits, weights.group_size) == (4, GROUP_SIZE)
    assert weights.symmetric == config["config_groups"]["group_0"]["weights"]["symmetric"]
    assert "lm_head" in read.ignore


@NEEDS_KERNELS
def test_vllm_answers_as_our_engine_does(checkpoint: Path) -> None:
    """The first tokens: later ones follow from them, and half precision may turn one."""
    ours, theirs = (first_tokens(engine, checkpoint) for engine in ("paged", "vllm"))
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    assert same >= len(PROMPTS) - 1, (ours, theirs)


def first_tokens(engine: str, folder: Path) -> list[str]:
    """What an engine answers to each prompt, one token each."""
    tokenizer = tiny_tokenizers.byte_level()
    running = create_engine(Settings(engine=engine, weights_dir=folder, max_model_len=64, max_num_seqs=4))

    async def answer(prompt: str) -> str:
        request = GenerationRequest(prompt, tuple(tokenizer.encode(prompt)), SamplingParams(max_tokens=1))
        return "".join([output.text async for output in running.generate(request)])

    async def answers() -> list[str]:
        return [await answer(prompt) for prompt in PROMPTS]

    try:
        return asyncio.run(answers())
    finally:
        running.close()
