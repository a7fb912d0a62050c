"""A tiny base, a tiny adapter and a task for scripts/prepare."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.paths import ROOT
from tests.tiny_tokenizers import byte_level, save

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TARGETS = ["q_proj", "v_proj", "down_proj"]


def make_sources(folder: Path) -> None:
    """`base`, `adapter`, schema.json, cases.jsonl and calibration.jsonl; the model has random weights."""
    torch.manual_seed(0)
    tokenizer = byte_level()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            eos_token_id=0,
            bos_token_id=None,
        )
    )
    model.save_pretrained(folder / "base")
    save(tokenizer, folder / "base")
    make_adapter(folder / "adapter", model)
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    lines = [{"input": f"I live in town {n}.", "output": {"city": f"town {n}"}} for n in range(40)]
    (folder / "cases.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "prompt.txt").write_text("### Text:\n{text}\n### City:\n")
    texts = [f'### Text:\nI live in town {n}.\n### City:\n{{"city": "town {n}"}}' for n in range(40)]
    (folder / "calibration.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def make_adapter(folder: Path, model: LlamaForCausalLM, seed: int = 1) -> None:
    """Write a LoRA adapter of random weights."""
    lora = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:  # zeros otherwise
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    lora.save_pretrained(folder)
    lora.unload()


def command(sources: Path, out: Path, *options: object) -> list[str]:
    """scripts/prepare on these sources, unquantized unless `options` say otherwise."""
    task = ["--task", "schema", "--schema", sources / "schema.json", "--template", sources / "prompt.txt"]
    words = ["--base", sources / "base", "--adapter", sources / "adapter", *task, "--out", out, *options]
    return [str(ROOT / "scripts" / "prepare"), *map(str, words)]


def environment() -> dict[str, str]:
    """One thread, and nothing is compiled: on a model this small, both only take time."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}


def prepare(sources: Path, out: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        command(sources, out, *options),
        env=environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=1500,
    )
