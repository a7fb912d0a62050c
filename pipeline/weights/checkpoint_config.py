"""Reads the config.json of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.weights.errors import CheckpointError


def read_config_json(folder: Path) -> dict[str, Any]:
    """The config.json of a checkpoint.

    Raises:
        CheckpointError: there is none, or it is no JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no config.json; give the folder of a whole checkpoint, and no adapter")
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}, not an object")
    return config


def unquantized_config(folder: Path) -> dict[str, Any]:
    """The config.json of an unquantized checkpoint.

    Raises:
        CheckpointError: as `read_config_json`, or the checkpoint is quantized.
    """
    config = read_config_json(folder)
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else "unknown"
        remedy = ", with --nf4 for an adapter of QLoRA" if method == "bitsandbytes" else ""
        raise CheckpointError(
            f"{folder} is quantized already ({method}); give the checkpoint that it was made from{remedy}"
        )
    return config
