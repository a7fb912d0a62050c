"""A folder of weights small enough to start the real Cog server in a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from lab.endurance.own_weights import lock_text, settings
from tests.tiny_tokenizers import byte_level, save


def make_tiny_weights(
    folder: Path,
    *,
    surface: str = "json",
    task: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write a tokenizer, a task file and their lock, enough for the fake engine; returns the settings for them.

    Args:
        folder: of the weights' folder and the lock.
        surface: of the Honeycomb task.
        task: another task's file.
        files: texts of more files in the weights' folder.
    """
    weights = folder / "tiny"
    weights.mkdir()
    save(byte_level(), weights)
    save_file({"unused": np.zeros(1, np.float32)}, weights / "model.safetensors")
    honeycomb = {"task": "honeycomb", "name": "tiny", "prompt": "columns-first", "surface": surface}
    for name, text in {"task.json": json.dumps(task or honeycomb), **(files or {})}.items():
        (weights / name).write_text(text)
    lock = folder / "weights.lock"
    lock.write_text(lock_text(weights))
    return settings(weights, lock)
