"""Read a checkpoint as the fp32 weights that its tensors mean, whatever they are packed in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.weights.awq_format import PackedWeight, dequantize
from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from pipeline.weights.tensors import Array, TensorSpec

_MARKS = {"awq": ".qweight", "compressed-tensors": ".weight_packed"}  # the tensor that each quantized layer has
_OFFSET = 8  # compressed-tensors stores a value plus 8


class PlainWeights:
    """The checkpoint of a folder, each tensor by its unquantized name and in fp32.

    Args:
        folder: with config.json and safetensors; unquantized, AWQ, or compressed-tensors' pack-quantized.

    Raises:
        CheckpointError: the folder is not such a checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "config.json"
        if not path.exists():
            raise CheckpointError(f"{folder} has no config.json; give a folder of a Hugging Face checkpoint")
        self.config: dict[str, Any] = json.loads(path.read_text("utf-8"))
        self._source = SafetensorsCheckpoint(folder)
        self._tensors = self._source.specs()
        method, self._group_size = _quantization(folder, self.config.get("quantization_config"))
        mark = _MARKS.get(method, "")
        self._packed = {name.removesuffix(mark): method for name in self._tensors if mark and name.endswith(mark)}

    def specs(self) -> dict[str, TensorSpec]:
        """The unquantized names and shapes."""
        hidden = tuple(f"{linear}." for linear in self._packed)
        plain = {
            name: TensorSpec("F32", spec.shape)
            for name, spec in self._tensors.items()
            if name.endswith(".bias") or not name.startswith(hidden)
        }
        return plain | {f"{linear}.weight": TensorSpec("F32", self._shape(linear)) for linear in self._packed}

    def load(self, name: str) -> Array:
        """One tensor in fp32."""
        linear = name.removesuffix(".weight")
        if linear == name or linear not in self._packed:
            return self._source.load(name).astype(np.float32, copy=False)
        if self._packed[linear] == "awq":
            parts = (self._source.load(f"{linear}.{part}") for part in ("qweight", "qzeros", "scales"))
            return dequantize(PackedWeight(*parts), self._group_size)
        return self._compressed(linear)

    def load_rows(self, name: str, rows: Sequence[int]) -> Array:
        """Some rows of a matrix that is not quantized, in fp32."""
        return self._source.load_rows(name, rows).astype(np.float32, copy=False)

    def _shape(self, linear: str) -> tuple[int, ...]:
        if self._packed[linear] == "awq":
            inputs, groups = self._tensors[f"{linear}.qweight"].shape
            return groups * 8, inputs
        outputs, words = self._tensors[f"{linear}.weight_packed"].shape
        return outputs, words * 8

    def _compressed(self, linear: str) -> Array:
        values = _nibbles(self._source.load(f"{linear}.weight_packed"))  # [N, K]
        scales = self._source.load(f"{linear}.weight_scale").astype(np.float32)  # [N, K // g]
        zeros = np.zeros_like(scales)
        if f"{linear}.weight_zero_point" in self._tensors:
            zeros = _nibbles(self._source.load(f"{linear}.weight_zero_point").T).T
        groups = values.reshape(*scales.shape, -1)
        return ((groups - zeros[:, :, None]) * scales[:, :, None]).reshape(values.shape)


def _quantization(folder: Path, data: Any) -> tuple[str, int]:
    """The method and the group size; an empty text for unquantized weights."""
    if not data:
        return "", 1
    method = data.get("quant_method")
    if method == "awq":
        return method, int(data["group_size"])
    if method == "compressed-tensors" and data.get("format") == "pack-quantized":
        return method, 1  # its scales say it
    raise CheckpointError(
        f"{folder} is quantized as {method!r}; awq and compressed-tensors' pack-quantized can be read"
    )


def _nibbles(words: Array) -> Array:
    """[R, C // 8] int32 → [R, C] fp32 of -8 … 7."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    levels = ((unsigned[:, :, None] >> shifts) & np.uint32(15)).reshape(words.shape[0], -1)
    return levels.astype(np.float32) - np.float32(_OFFSET)
