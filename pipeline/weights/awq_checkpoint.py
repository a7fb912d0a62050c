"""Quantizes the tensors of a checkpoint while they are read, and writes the files of an AWQ folder.

write_awq_model(path, merged, search)
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from pipeline.weights.atomic import partial_file, write_json
from pipeline.weights.awq_format import NIBBLES, PackedWeight, check_shape
from pipeline.weights.awq_search_result import AwqSearchResult
from pipeline.weights.checkpoint_config import unquantized_config
from pipeline.weights.console import progress_bar
from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import SafetensorsCheckpoint, write_safetensors
from pipeline.weights.tensors import Array, CheckpointTensors, Fingerprinted, Progress, TensorSpec, no_progress

_LINEAR = re.compile(r"(model\.layers\.\d+\.\w+\.(?:q|k|v|o|gate|up|down)_proj)\.weight")
_PARTS = ("qweight", "qzeros", "scales")
_COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
)
_SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p")


def linear_names(names: list[str] | dict[str, TensorSpec]) -> list[str]:
    """The linear layers to quantize: those of the decoder layers; head and embedding stay in fp16."""
    return sorted(match[1] for match in map(_LINEAR.fullmatch, names) if match is not None)


def quantization_config(search: AwqSearchResult) -> dict[str, Any]:
    """The quantization_config of config.json, by which vLLM and transformers recognize the layout.

    vLLM takes a name of `modules_to_not_convert` for every layer whose name has it inside; ours are whole names.
    """
    config = {"quant_method": "awq", "bits": 4, "group_size": search.group_size, "zero_point": True, "version": "gemm"}
    return config | ({"modules_to_not_convert": sorted(search.sixteen_bits)} if search.sixteen_bits else {})


class AwqCheckpoint:
    """The scaled, clipped and rounded tensors of another checkpoint, computed when they are loaded.

    Raises:
        CheckpointError: a layer's shape does not fit the group size, or one to leave in 16 bits is not there.
    """

    def __init__(self, source: CheckpointTensors, search: AwqSearchResult) -> None:
        self._source = source
        self._search = search
        self._source_specs = source.specs()
        linears = set(linear_names(self._source_specs))
        if missing := search.sixteen_bits - linears:
            raise CheckpointError(f"the AWQ search result names {min(missing)}, which the checkpoint does not have")
        self._linears = linears - search.sixteen_bits
        for linear in self._linears:
            check_shape(linear, self._source_specs[f"{linear}.weight"].shape, search.group_size)
        self._last: tuple[str, PackedWeight] | None = None

    def specs(self) -> dict[str, TensorSpec]:
        """The specs of qweight, qzeros and scales for each rounded layer, and of all other tensors in fp16."""
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
            self._last = (linear, self._search.round(linear, weight))
        array: Array = getattr(self._last[1], part)
        return array

    def _packed_specs(self, linear: str, spec: TensorSpec) -> dict[str, TensorSpec]:
        outputs, inputs = spec.shape
        groups = inputs // self._search.group_size
        specs = (
            TensorSpec("I32", (inputs, outputs // NIBBLES)),
            TensorSpec("I32", (groups, outputs // NIBBLES)),
            TensorSpec("F16", (groups, outputs)),
        )
        return {f"{linear}.{part}": part_spec for part, part_spec in zip(_PARTS, specs, strict=True)}


def quantize_folder(model: Path, output: Path, search: AwqSearchResult) -> None:
    """Write the AWQ folder of the checkpoint in the folder `model`.

    Raises:
        CheckpointError: the checkpoint cannot be read, or the search result does not belong to it.
    """
    source = SafetensorsCheckpoint(model)
    with progress_bar("Packing", source) as progress:
        write_awq_model(output / "model.safetensors", source, search, progress)
    write_companions(model, unquantized_config(model), search, output)


def write_awq_model(
    path: Path, source: CheckpointTensors, search: AwqSearchResult, progress: Progress = no_progress
) -> None:
    """Write the quantized tensors to one file.

    Raises:
        CheckpointError: the search result belongs to another checkpoint; no file is left.
    """
    seen = Fingerprinted(source)
    with partial_file(path) as partial:
        write_safetensors(partial, AwqCheckpoint(seen, search), progress=progress)
        if search.fingerprint not in (None, fingerprint := seen.fingerprint()):
            raise CheckpointError(
                f"the AWQ search result belongs to the checkpoint {search.fingerprint}, these weights are "
                f"{fingerprint}: the base or the adapter has changed since. Run the search again "
                "(scripts/quantize_awq --help says how), or pass --plain to round without it."
            )


def awq_config(config: dict[str, Any], search: AwqSearchResult) -> dict[str, Any]:
    """The quantized model's config.json, from the unquantized one's."""
    dtype_key = "dtype" if "dtype" in config else "torch_dtype"
    return {**config, dtype_key: "float16", "quantization_config": quantization_config(search)}


def write_companions(source: Path, config: dict[str, Any], search: AwqSearchResult, output: Path) -> None:
    """Write all files of an AWQ folder except the tensors; its generation config is greedy."""
    write_json(output / "config.json", awq_config(config, search))
    for name in _COMPANIONS:
        if (source / name).exists():
            shutil.copyfile(source / name, output / name)
    generation = output / "generation_config.json"
    if generation.exists():
        kept = json.loads(generation.read_text("utf-8"))
        write_json(generation, {**{key: kept[key] for key in kept if key not in _SAMPLING}, "do_sample": False})
