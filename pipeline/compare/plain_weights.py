"""A checkpoint as the fp32 weights that its tensors mean, whatever they are packed in, and how far two are apart.

AWQ multiplies a channel in one layer and divides it in the layer before. So a layer behind a norm is compared with the
norm's weights multiplied in; for up_proj and down_proj, and v_proj and o_proj of the same shape, the scale of each
channel is estimated by least squares and taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.weights.awq_checkpoint import linear_names
from pipeline.weights.awq_format import PackedWeight, dequantize
from pipeline.weights.checkpoint_config import read_config_json
from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from pipeline.weights.tensors import Array, TensorSpec

_MARKS = {"awq": ".qweight", "compressed-tensors": ".weight_packed"}  # the tensor that each quantized layer has
_OFFSET = 8  # compressed-tensors stores a value plus 8
_NORMS = {  # in front of which layers
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
_PAIRS = {"self_attn.v_proj": "self_attn.o_proj", "mlp.up_proj": "mlp.down_proj"}


class PlainWeights:
    """The checkpoint of a folder, each tensor by its unquantized name and in fp32.

    Args:
        folder: a folder with config.json and safetensors: unquantized, AWQ, or compressed-tensors' pack-quantized.

    Raises:
        CheckpointError: the folder is not such a checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.config = read_config_json(folder)
        self._source = SafetensorsCheckpoint(folder)
        self._tensors = self._source.specs()
        self._method, self._group_size = _quantization(folder, self.config.get("quantization_config"))
        mark = _MARKS.get(self._method)
        self._packed = {name.removesuffix(mark) for name in self._tensors if mark and name.endswith(mark)}

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
        if self._method == "awq":
            parts = (self._source.load(f"{linear}.{part}") for part in ("qweight", "qzeros", "scales"))
            return dequantize(PackedWeight(*parts), self._group_size)
        return self._compressed(linear)

    def load_rows(self, name: str, rows: Sequence[int]) -> Array:
        """The named rows of a matrix that is not quantized, in fp32."""
        return self._source.load_rows(name, rows).astype(np.float32, copy=False)

    def _shape(self, linear: str) -> tuple[int, ...]:
        if self._method == "awq":
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
    """Unpack [R, C // 8] int32 into [R, C] fp32 of -8 … 7."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    levels = ((unsigned[:, :, None] >> shifts) & np.uint32(15)).reshape(words.shape[0], -1)
    return levels.astype(np.float32) - np.float32(_OFFSET)


def weight_errors(before: PlainWeights, after: PlainWeights) -> Iterator[tuple[str, float]]:
    """The relative error ‖after - before‖ / ‖before‖ (Frobenius) of each linear layer, by name.

    It is NaN or infinite where a weight is.

    Raises:
        CheckpointError: the checkpoints have different tensors.
    """
    specs = before.specs()
    _check_same(specs, after.specs())
    for prefix in sorted({name.split("_proj")[0].rsplit(".", 2)[0] for name in linear_names(specs)}, key=_number):
        for first, second in _PAIRS.items():
            scales = _channel_scales(before, after, prefix, first, second)
            yield f"{prefix}.{first}", _error(before, after, prefix, first, outputs=scales)
            yield f"{prefix}.{second}", _error(before, after, prefix, second, inputs=scales)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"):
            yield f"{prefix}.{name}", _error(before, after, prefix, name)


def _number(prefix: str) -> int:
    return int(prefix.split(".")[2])


def _check_same(before: dict[str, TensorSpec], after: dict[str, TensorSpec]) -> None:
    head = {"lm_head.weight"}  # where it is tied, files may have it or not
    if different := sorted((before.keys() ^ after.keys()) - head):
        raise CheckpointError(f"only one of the checkpoints has {different[0]}; give a model and what was made of it")
    for name in sorted(before.keys() & after.keys()):
        if before[name].shape != after[name].shape:
            shapes = f"{list(before[name].shape)} and {list(after[name].shape)}"
            raise CheckpointError(f"{name} is {shapes} in the two checkpoints; give a model and what was made of it")


def _channel_scales(before: PlainWeights, after: PlainWeights, prefix: str, first: str, second: str) -> Array | None:
    """The factor of each output of `first` that brings `after` closest to `before`. [N]"""
    specs = before.specs()
    if specs[f"{prefix}.{first}.weight"].shape[0] != specs[f"{prefix}.{second}.weight"].shape[1]:
        return None  # grouped attention: AWQ has no scales there
    wanted, found = (_with_norm(weights, prefix, first) for weights in (before, after))
    products, squares = (wanted * found).sum(axis=1), (found * found).sum(axis=1)
    usable = (squares > 0) & (products > 0)
    return np.where(usable, products / np.where(usable, squares, 1), 1)


def _error(
    before: PlainWeights,
    after: PlainWeights,
    prefix: str,
    name: str,
    *,
    outputs: Array | None = None,
    inputs: Array | None = None,
) -> float:
    wanted, found = (_with_norm(weights, prefix, name) for weights in (before, after))
    if outputs is not None:
        found = found * outputs[:, None]
    if inputs is not None:
        found = found / inputs
    with np.errstate(invalid="ignore", over="ignore"):  # infinite weights
        size, difference = float(np.linalg.norm(wanted)), float(np.linalg.norm(found - wanted))
    if size == 0 and math.isfinite(difference):
        return float(difference > 0)
    return difference / size if size else difference


def _with_norm(weights: PlainWeights, prefix: str, name: str) -> Array:
    weight = weights.load(f"{prefix}.{name}.weight")
    for norm, layers in _NORMS.items():
        if name in layers:
            return weight * weights.load(f"{prefix}.{norm}.weight")
    return weight
