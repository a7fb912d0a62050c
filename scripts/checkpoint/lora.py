"""A LoRA adapter folded into the weights it was trained on, in a fixed order of sums.

Owns: reading PEFT's two files and the merge. Knows nothing of training. No matrix product is used:
libraries order its sums differently on different processors, and the default weights must come out
the same everywhere.

    merged = MergedCheckpoint(base, LoraAdapter(Path("adapters/honeycomb-nlq")))
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from .errors import CheckpointError
from .safetensors_io import SafetensorsFile
from .tensors import Array, Checkpoint, TensorSpec

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_ROWS_AT_ONCE = 64  # keeps a block of the weight in the processor's cache
# What changes the meaning of A and B, with the one value that is understood.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
    "target_parameters": (None, []),
}


class LoraAdapter:
    """Pairs A [rank, K] and B [N, rank] by layer name, and their scaling."""

    def __init__(self, folder: Path) -> None:
        config = _read_config(folder)
        self._file = SafetensorsFile(folder / "adapter_model.safetensors")
        self._names: dict[str, dict[str, str]] = {}
        for name in self._file.specs():
            match = _TENSOR.fullmatch(name)
            if match is None:
                raise CheckpointError(f"{folder}: {name!r} is no A or B of a plain LoRA; it cannot be merged")
            self._names.setdefault(match[1], {})[match[2]] = name
        for layer, pair in self._names.items():
            if len(pair) != 2:
                raise CheckpointError(f"{folder}: {layer} has only one of A and B; the adapter is incomplete")
        rank = int(config["r"])
        root = math.sqrt(rank) if config.get("use_rslora") else rank
        self.scaling = float(config["lora_alpha"]) / root

    def layers(self) -> list[str]:
        """The layers that it changes."""
        return sorted(self._names)

    def shape(self, layer: str) -> tuple[int, int]:
        """The shape [N, K] of the weight that the layer must have."""
        specs, names = self._file.specs(), self._names[layer]
        return specs[names["B"]].shape[0], specs[names["A"]].shape[1]

    def merge(self, layer: str, weight: Array) -> Array:
        """weight + scaling · B A, fp32: products summed over the rank in order, one row block at a time."""
        down = self._file.load(self._names[layer]["A"]).astype(np.float32)
        up = self._file.load(self._names[layer]["B"]).astype(np.float32)
        merged = weight.astype(np.float32)
        for begin in range(0, merged.shape[0], _ROWS_AT_ONCE):
            rows = slice(begin, begin + _ROWS_AT_ONCE)
            merged[rows] += _ordered_product(up[rows], down) * np.float32(self.scaling)
        return merged


class MergedCheckpoint:
    """A checkpoint with an adapter folded in; types stay as they are."""

    def __init__(self, base: Checkpoint, adapter: LoraAdapter) -> None:
        self._base = base
        self._adapter = adapter
        self._layers = set(adapter.layers())
        specs = base.specs()
        for layer in self._layers:
            spec = specs.get(f"{layer}.weight")
            if spec is None or spec.shape != adapter.shape(layer):
                found = "no such layer" if spec is None else list(spec.shape)
                raise CheckpointError(
                    f"the adapter changes {layer} {list(adapter.shape(layer))}, the base has {found}; "
                    "it was trained on another model"
                )

    def specs(self) -> dict[str, TensorSpec]:
        """As the base's."""
        return self._base.specs()

    def load(self, name: str) -> Array:
        """One tensor, merged in fp32 when the adapter changes it."""
        layer, tensor = name.removesuffix(".weight"), self._base.load(name)
        return self._adapter.merge(layer, tensor) if layer in self._layers else tensor


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "adapter_config.json"
    if not path.exists():
        raise CheckpointError(f"{folder} has no adapter_config.json; give a folder that PEFT wrote")
    config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    for key, understood in _PLAIN.items():
        if config.get(key) not in understood:
            raise CheckpointError(
                f"{path}: {key} is {config.get(key)!r}; only {understood[0]!r} can be merged"
            )
    if int(config.get("r", 0)) < 1:
        raise CheckpointError(f"{path}: r is {config.get('r')!r}; the rank must be 1 or more")
    return config


def _ordered_product(up: Array, down: Array) -> Array:
    """up [n, rank] · down [rank, k]: multiply, then add, rank by rank from the first."""
    total = up[:, :1] * down[:1]
    term = np.empty_like(total)
    for index in range(1, down.shape[0]):
        np.multiply(up[:, index : index + 1], down[index : index + 1], out=term)
        np.add(total, term, out=total)
    return total
