"""A tiny checkpoint folder as a user would have one; its answers are random."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.tiny_tokenizers import byte_level, save

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}

HONEYCOMB = {"task": "honeycomb", "name": "theirs", "prompt": "columns-first", "surface": "json"}


def make_checkpoint(folder: Path, *, task_file: dict[str, Any] | None = None, **config: Any) -> Path:
    """A tokenizer, tensors, config.json with these changes, a README, and task.json where one is given."""
    folder.mkdir(parents=True)
    save(byte_level(), folder)
    save_file({"unused": np.arange(64, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "README.md").write_text("A model of mine.")
    if task_file is not None:
        (folder / "task.json").write_text(json.dumps(task_file))
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Digests of the files in a folder, to check that they do not change."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
