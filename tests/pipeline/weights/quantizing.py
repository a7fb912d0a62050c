"""Runs scripts/quantize_awq on tiny models of each architecture, with channels of large values as in real models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import tiny_tokenizers
from tests.serving.models import tiny_checkpoints

ROOT = Path(__file__).parents[3]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"vocab_size": 500, "initializer_range": 0.05, "max_position_embeddings": 1024, "eos_token_id": 0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 64
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: tiny_checkpoints.tiny_llama(**SIZES, rope_parameters=LLAMA3),
    "mistral": lambda: tiny_checkpoints.tiny_mistral(**{**SIZES, "num_key_value_heads": 4}, sliding_window=None),
    "qwen2": lambda: tiny_checkpoints.tiny_qwen2(**{**SIZES, "num_key_value_heads": 4}, tie_word_embeddings=True),
    "qwen3": lambda: tiny_checkpoints.tiny_qwen3(**SIZES, head_dim=32),
}


def write_model(name: str, folder: Path, **overrides: Any) -> Any:
    """Write a tiny model with its tokenizer; returns it as transformers has it."""
    model = MODELS[name]() if not overrides else tiny_checkpoints.tiny_llama(**SIZES, **overrides)
    for layer in model.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.data[::16] *= 20
    tiny_checkpoints.save(model, folder)
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), folder)
    return model


def command(model: Path, output: Path, *options: str) -> list[str]:
    """The command line; its calibration texts are in the model's folder."""
    texts = model.parent / "calibration.jsonl"
    lines = ["the slowest traces of the checkout service", "count errors by name", '{"op": "COUNT"}']
    texts.write_text("".join(json.dumps({"text": f"{line} {n}"}) + "\n" for n in range(40) for line in lines))
    script = str(ROOT / "scripts/quantize_awq")
    return [sys.executable, script, str(model), str(output), "--calibration", str(texts), *options]


def environment() -> dict[str, str]:
    """One thread: on a model this small, threads only wait for each other."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def quantize(model: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        command(model, output, *options), env=environment(), capture_output=True, text=True, timeout=280, check=False
    )
