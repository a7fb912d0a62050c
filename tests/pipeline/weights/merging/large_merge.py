"""Time a merge of a 7B-shaped random checkpoint with a rank-16 adapter on all linear layers, and measure its memory.

    .venv/bin/python -m tests.pipeline.weights.merging.large_merge FOLDER --json docs/results/prepare-7b-merge.json

FOLDER gets 29 GB, which are deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.machine import describe_checkout, describe_machine
from pipeline.paths import ROOT
from pipeline.weights.atomic import write_json
from pipeline.weights.safetensors_io import layout
from pipeline.weights.tensors import TensorSpec

LAYERS, HIDDEN, KEYS, INNER, VOCABULARY, RANK, SHARDS = 32, 4096, 1024, 14336, 32000, 16, 4
CONFIG = {  # Mistral-7B-v0.1's
    **{
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "vocab_size": VOCABULARY,
    },
    **{"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "max_position_embeddings": 32768},
    **{"sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
}
LINEAR = {
    **{"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KEYS, HIDDEN), "self_attn.v_proj": (KEYS, HIDDEN)},
    **{"self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN)},
    "mlp.down_proj": (HIDDEN, INNER),
}


class RandomFiles:
    """Writes files of normal numbers; tensors are parts of one pool, because drawing 7 billion numbers is slow."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        chunk = TensorSpec("F32", (2**22,))
        self._rng = rng
        self._pools = {"F32": b"", "BF16": b""}
        for _ in range(32):
            numbers = rng.standard_normal(chunk.shape, dtype=np.float32) * np.float32(0.02)
            self._pools["BF16"] += bytes(TensorSpec("BF16", chunk.shape).encode(numbers))
        self._pools["F32"] = bytes(chunk.encode(numbers))

    def write(self, path: Path, shapes: dict[str, tuple[int, ...]], dtype: str) -> None:
        """Write one file."""
        specs = {name: TensorSpec(dtype, shape) for name, shape in shapes.items()}
        header, offsets = layout(specs)
        pool = memoryview(self._pools[dtype])
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.write(header)
            for name, spec in specs.items():
                begin = int(self._rng.integers((len(pool) - spec.nbytes) // 4)) * 4
                file.seek(offsets[name])
                file.write(pool[begin : begin + spec.nbytes])


def write_inputs(folder: Path) -> None:
    """Write `base` and `adapter`."""
    files = RandomFiles()
    layers: list[dict[str, tuple[int, ...]]] = [
        {f"model.layers.{layer}.{name}.weight": shape for name, shape in LINEAR.items()}
        | {f"model.layers.{layer}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
        for layer in range(LAYERS)
    ]
    layers[0] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), **layers[0]}
    layers[-1] = {**layers[-1], "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}
    weight_map = {}
    for shard in range(SHARDS):
        part = [layers[layer] for layer in range(shard * LAYERS // SHARDS, (shard + 1) * LAYERS // SHARDS)]
        shapes = {name: shape for layer in part for name, shape in layer.items()}
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        files.write(folder / "base" / file, shapes, "BF16")
        weight_map |= dict.fromkeys(shapes, file)
    write_json(folder / "base/model.safetensors.index.json", {"weight_map": weight_map})
    write_json(folder / "base/config.json", CONFIG)
    factors: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        for name, (outputs, inputs) in LINEAR.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            factors |= {f"{prefix}.lora_A.weight": (RANK, inputs), f"{prefix}.lora_B.weight": (outputs, RANK)}
    files.write(folder / "adapter/adapter_model.safetensors", factors, "F32")
    write_json(folder / "adapter/adapter_config.json", {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK})


def measure(folder: Path, *options: str) -> dict[str, Any]:
    """Run the command; returns the kernel's figures of its time and memory, and its report without single tensors."""
    output, report = folder / "merged", folder / "report.json"
    command = ["scripts/merge_lora", str(folder / "base"), str(folder / "adapter"), str(output), *options]
    started = time.monotonic()
    child = subprocess.Popen([sys.executable, *command, "--json", str(report)], cwd=ROOT, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"the merge failed with exit code {child.returncode}")
    shutil.rmtree(output)
    found = json.loads(report.read_text())
    found["differences"].pop("tensors")
    return {
        "options": list(options),
        "wall_seconds": round(seconds, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_memory_gib": round(usage.ru_maxrss / 2**20, 3),
        "report": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "version": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m tests.pipeline.weights.merging.large_merge FOLDER --json {arguments.json}",
        **describe_checkout(),
        "machine": describe_machine(),
        "model": f"random bf16 weights in the shape of Mistral-7B in {SHARDS} files; adapter of rank {RANK} in float32 "
        "on all linear layers",
        "merges": [],
    }
    try:
        write_inputs(arguments.folder)
        for options in (["--nf4"], []):
            result["merges"].append(measure(arguments.folder, *options))
            write_json(arguments.json, result)
    finally:
        shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    main()
