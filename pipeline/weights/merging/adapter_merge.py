"""Merge several LoRA adapters of one base into one, and write it as PEFT does."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from pipeline.weights.atomic import partial_file, replace_folder, write_json
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.companions import copy_common
from pipeline.weights.merging.lora_adapter import PeftAdapter
from serving.adapters.combination import Combination, Method
from serving.adapters.combine import LowRank, combine_layer, reduced
from serving.weights.adapter_files import CONFIG, TENSORS

_TYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def merge_adapters(
    folders: Sequence[Path], combination: Combination, output: Path, max_rank: int | None = None
) -> None:
    """Write an adapter that combines others; it has the widest type of their tensors, and appears when it is complete.

    Args:
        folders: the folders of the adapters, as PEFT writes them.
        combination: the recipe; its names are those of the folders.
        max_rank: a higher rank is reduced to it; None for any.

    Raises:
        AdapterError: the adapters cannot be combined.
        CheckpointError: a folder is no adapter or has more than factors of linear layers, or the output exists.
    """
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise CheckpointError(f"{output} exists and is not an empty folder; remove it, or give another --out")
    adapters = {name: _open(folder) for name, folder in zip(combination.names, folders, strict=True)}
    types = {spec.dtype for adapter in adapters.values() for spec in adapter.tensors.specs().values()}
    dtype = reduce(torch.promote_types, (_TYPES[name] for name in sorted(types)))
    names = sorted({layer for adapter in adapters.values() for layer in adapter.layers()})
    layers = {}
    for layer in names:
        parts = {name: _part(one, layer) for name, one in adapters.items() if layer in one.layers()}
        change = combine_layer(layer, parts, combination)
        layers[layer] = (change if max_rank is None else reduced(change, max_rank)).to(dtype)
    staging = output.with_name(f".{output.name}.merging")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    copy_common(folders, staging)
    _write(staging, layers, _config(folders[0], layers, combination))
    replace_folder(staging, output)
    say(f"Merged {len(adapters)} adapters of {len(layers)} layers into {output}, rank {_ranks(layers)}")


def _open(folder: Path) -> PeftAdapter:
    """An adapter that has factors of linear layers and nothing else."""
    adapter = PeftAdapter(folder)
    specs = adapter.tensors.specs()
    found = {
        "uses DoRA": adapter.config.dora,
        "has transposed layers (fan_in_fan_out)": adapter.config.fan_in_fan_out,
        "has whole trained tensors (modules_to_save or biases)": adapter.copied or adapter.beneath,
        "has trained rows of an embedding": adapter.tokens or any(".lora_embedding_" in name for name in specs),
        "has biases of LoRA layers": any(name.endswith(".bias") for name in specs),
        "has tensors of integers": any(spec.dtype not in _TYPES for spec in specs.values()),
        "has no factors": not adapter.layers(),
    }
    for what, is_so in found.items():
        if is_so:
            raise CheckpointError(f"{folder} {what} and cannot be combined; merge it into its base: scripts/merge_lora")
    return adapter


def _part(adapter: PeftAdapter, layer: str) -> LowRank:
    change = adapter.change(layer)
    return LowRank(torch.from_numpy(change.down), torch.from_numpy(change.up), change.scaling)


def _ranks(layers: Mapping[str, LowRank]) -> str:
    low, high = (edge(change.a.shape[0] for change in layers.values()) for edge in (min, max))
    return f"{low}" if low == high else f"{low} to {high}"


def _config(first: Path, layers: Mapping[str, LowRank], combination: Combination) -> dict[str, Any]:
    """The content of adapter_config.json. A mean keeps that of the first, so that a training can continue from it."""
    config: dict[str, Any] = json.loads((first / CONFIG).read_text("utf-8"))
    if combination.method is Method.MEAN:
        return config
    ranks = {layer: change.a.shape[0] for layer, change in layers.items()}
    largest = max(ranks.values())
    pattern = {re.escape(layer): rank for layer, rank in ranks.items() if rank != largest}
    return {
        **{key: config.get(key) for key in ("base_model_name_or_path", "revision", "task_type")},
        **{"peft_type": "LORA", "inference_mode": True, "bias": "none", "lora_dropout": 0.0},
        **{"r": largest, "lora_alpha": largest, "rank_pattern": pattern, "alpha_pattern": pattern},  # scaling 1
        "target_modules": list(layers),
    }


def _write(folder: Path, layers: Mapping[str, LowRank], config: Mapping[str, Any]) -> None:
    tensors = {}
    for layer, change in layers.items():
        tensors[f"base_model.model.{layer}.lora_A.weight"] = change.a.contiguous()
        tensors[f"base_model.model.{layer}.lora_B.weight"] = change.b.contiguous()
    with partial_file(folder / TENSORS) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.chmod(0o644)  # safetensors makes it readable by its owner only
    write_json(folder / CONFIG, dict(config))
