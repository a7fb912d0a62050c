"""Folders of random adapters as PEFT writes them, and stores of adapters for tests of the paged engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from serving.adapters.adapter_store import AdapterStore
from serving.kernels.base import DecoderWeights
from serving.kernels.lora import Projection

MODULES = {
    "self_attn.q_proj": Projection.QUERY,
    "self_attn.k_proj": Projection.KEY,
    "self_attn.v_proj": Projection.VALUE,
    "self_attn.o_proj": Projection.OUTPUT,
    "mlp.gate_proj": Projection.GATE,
    "mlp.up_proj": Projection.UP,
    "mlp.down_proj": Projection.DOWN,
}


def no_adapters() -> AdapterStore:
    """A store of none."""
    return AdapterStore({}, lambda entry: None, max_bytes=0)


def write_adapter(
    folder: Path,
    weights: DecoderWeights,
    *,
    seed: int = 0,
    rank: int = 4,
    modules: Sequence[str] = tuple(MODULES),
    dtype: torch.dtype = torch.float32,
    config: Mapping[str, Any] | None = None,
    extra: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """A random adapter of some of the modules of all layers, with `config` in its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for number in range(len(weights.layers)):
        for module in modules:
            inputs, outputs = weights.projections[MODULES[module]]
            stem = f"base_model.model.model.layers.{number}.{module}.lora_"
            tensors[f"{stem}A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.1
            tensors[f"{stem}B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.1
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()} | dict(extra or {})
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(modules), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | dict(config or {})))
    return folder


def write_registry(path: Path, folders: Mapping[str, Path], **fields: str) -> Path:
    """adapters.yaml of these folders, each with the same further fields."""
    more = "".join(f"    {name}: {value}\n" for name, value in fields.items())
    items = "".join(f"  - name: {name}\n    source: {folder}\n{more}" for name, folder in folders.items())
    path.write_text(f"adapters:\n{items}")
    return path
