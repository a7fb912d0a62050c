"""Save and load the result of the AWQ search.

A safetensors file has the scales in fp16, the clip steps, two in a byte, and the moments for error feedback in int8;
the rest is JSON in its metadata.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .awq_search_result import AwqSearchResult, ScaleGroup
from .error_feedback import Feedback
from .errors import CheckpointError
from .safetensors_io import SafetensorsFile, write_safetensors
from .tensors import Array, ArraysInMemory

_SCALES, _CLIP = ".scales", ".clip_steps"
_NORMS, _FACTORS = ".input_norms", ".input_factors"


def save_search_result(path: Path, result: AwqSearchResult) -> None:
    """Write a search result to a file."""
    arrays = {group.before + _SCALES: group.scales for group in result.scale_groups}
    arrays |= {name + _CLIP: _pack_nibbles(steps) for name, steps in result.clip_steps.items()}
    for moments in result.feedback_groups:
        arrays |= {moments.layers[0] + _NORMS: moments.norms, moments.layers[0] + _FACTORS: moments.factors}
    about = {
        "group_size": result.group_size,
        "fingerprint": result.fingerprint,
        "made_with": result.made_with,
        "scale_groups": {group.before: list(group.after) for group in result.scale_groups},
        "feedback": [list(moments.layers) for moments in result.feedback_groups],
        "clip_shapes": {name: list(steps.shape) for name, steps in result.clip_steps.items()},
    }
    write_safetensors(path, ArraysInMemory(arrays), {"awq_search": json.dumps(about, sort_keys=True)})


def load_search_result(path: Path) -> AwqSearchResult:
    """Read a search result from a file.

    Raises:
        CheckpointError: the file is not a search result.
    """
    file = SafetensorsFile(path)
    try:
        about: dict[str, Any] = json.loads(file.metadata["awq_search"])
        groups = [
            ScaleGroup(before, tuple(after), file.load(before + _SCALES))
            for before, after in about["scale_groups"].items()
        ]
        clip_steps = {
            name: _unpack_nibbles(file.load(name + _CLIP), tuple(shape)) for name, shape in about["clip_shapes"].items()
        }
        feedback = [
            Feedback(tuple(layers), file.load(layers[0] + _NORMS), file.load(layers[0] + _FACTORS))
            for layers in about.get("feedback", ())
        ]
        return AwqSearchResult(
            about["group_size"], groups, clip_steps, about["fingerprint"], about["made_with"], feedback
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a result of scripts/quantize_awq: {error!r}") from error


def _pack_nibbles(steps: Array) -> Array:
    flat = np.append(steps.reshape(-1), np.zeros(steps.size % 2, np.uint8)).astype(np.uint8)
    return flat[0::2] | (flat[1::2] << np.uint8(4))


def _unpack_nibbles(packed: Array, shape: tuple[int, ...]) -> Array:
    flat = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=1).reshape(-1)
    return flat[: int(np.prod(shape))].reshape(shape)
