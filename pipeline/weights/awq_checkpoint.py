"""Quantize the tensors of a checkpoint while they are read.

write_safetensors(path, AwqCheckpoint(merged, search))
"""

from __future__ import annotations

import re
from typing import Any

from .awq_format import NIBBLES, PackedWeight, check_shape, quantize
from .awq_search_result import AwqSearchResult
from .error_feedback import quantize_with_feedback
from .tensors import Array, Checkpoint, TensorSpec

_LINEAR = re.compile(r"(model\.layers\.\d+\.\w+\.(?:q|k|v|o|gate|up|down)_proj)\.weight")
_PARTS = ("qweight", "qzeros", "scales")


def linear_names(names: list[str] | dict[str, TensorSpec]) -> list[str]:
    """The linear layers to quantize: those of the decoder layers; head and embedding stay in fp16."""
    return sorted(match[1] for match in map(_LINEAR.fullmatch, names) if match is not None)


def quantization_config(group_size: int) -> dict[str, Any]:
    """The quantization_config of config.json, by which vLLM and transformers recognize the layout."""
    return {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}


class AwqCheckpoint:
    """The scaled, clipped and rounded tensors of another checkpoint, computed when they are loaded.

    Raises:
        CheckpointError: a layer's shape does not fit the group size.
    """

    def __init__(self, source: Checkpoint, search: AwqSearchResult) -> None:
        self._source = source
        self._search = search
        self._source_specs = source.specs()
        self._linears = set(linear_names(self._source_specs))
        for linear in self._linears:
            check_shape(linear, self._source_specs[f"{linear}.weight"].shape, search.group_size)
        self._last: tuple[str, PackedWeight] | None = None

    def specs(self) -> dict[str, TensorSpec]:
        """qweight, qzeros and scales for each linear layer; all other tensors in fp16."""
        specs: dict[str, TensorSpec] = {}
        for name, spec in self._source_specs.items():
            linear = name.removesuffix(".weight")
            if linear in self._linears:
                specs |= self._packed_specs(linear, spec)
            else:
                specs[name] = TensorSpec("F16", spec.shape)
        return specs

    def load(self, name: str) -> Array:
        """One tensor. The three of a linear layer are computed together, so load them one after another."""
        linear, _, part = name.rpartition(".")
        if part == "bias":
            return self._search.scale_bias(linear, self._source.load(name))
        if linear not in self._linears:
            return self._search.scale(linear, self._source.load(name))
        if self._last is None or self._last[0] != linear:
            weight = self._search.scale(linear, self._source.load(f"{linear}.weight"))
            self._last = (linear, self._rounded(linear, weight))
        array: Array = getattr(self._last[1], part)
        return array

    def _rounded(self, linear: str, weight: Array) -> PackedWeight:
        clipped, feedback = self._search.clip(linear, weight), self._search.feedback.get(linear)
        if feedback is None:
            return quantize(clipped, self._search.group_size)
        return quantize_with_feedback(weight, clipped, self._search.group_size, feedback)

    def _packed_specs(self, linear: str, spec: TensorSpec) -> dict[str, TensorSpec]:
        outputs, inputs = spec.shape
        groups = inputs // self._search.group_size
        specs = (
            TensorSpec("I32", (inputs, outputs // NIBBLES)),
            TensorSpec("I32", (groups, outputs // NIBBLES)),
            TensorSpec("F16", (groups, outputs)),
        )
        return {f"{linear}.{part}": part_spec for part, part_spec in zip(_PARTS, specs, strict=True)}
