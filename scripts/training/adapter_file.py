"""An adapter on disk, as PEFT writes it.

Owns: adapter_config.json and adapter_model.safetensors (fp16: half the size, and finer than bf16
for numbers as small as these). Knows nothing of training.

    save_adapter(model, Path("build/adapter")); load_adapter(model, Path("build/adapter"))
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from scripts.training.errors import AdapterError
from scripts.training.model import LoraLlama

PREFIX = "base_model.model."
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def adapter_config(folder: Path) -> dict[str, Any]:
    """The adapter_config.json of a folder."""
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise AdapterError(f"{path}: no such file; give a folder that scripts/train_adapter wrote")
    config: dict[str, Any] = json.loads(path.read_text())
    return config


def save_adapter(model: LoraLlama, folder: Path, base_name: str) -> None:
    """Write both files; a reader never sees half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {PREFIX + name: t.to("cpu", torch.float16).contiguous() for name, t in model.named_lora()}
    partial = folder / "adapter_model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # safetensors leaves it to its owner alone
    partial.replace(folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": model.rank,
        "lora_alpha": model.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(TARGETS),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_adapter(model: LoraLlama, folder: Path) -> None:
    """Read an adapter of the same rank and scaling into the model.

    Raises:
        AdapterError: it was trained with another rank or alpha, or for another base.
    """
    config = adapter_config(folder)
    found = (config["r"], float(config["lora_alpha"]))
    if found != (model.rank, float(model.alpha)):
        raise AdapterError(
            f"{folder}: rank {found[0]} and alpha {found[1]:g}, the model has {model.rank} and "
            f"{model.alpha:g}; pass --rank {found[0]} --alpha {found[1]:g}"
        )
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, target in model.named_lora():
        tensor = tensors.pop(PREFIX + name, None)
        if tensor is None or tensor.shape != target.shape:
            raise AdapterError(f"{folder}: {PREFIX + name} is missing or of another shape; wrong base model?")
        target.copy_(tensor)
    if tensors:
        raise AdapterError(
            f"{folder}: {len(tensors)} tensors that the base has no place for: {min(tensors)} …"
        )
    model.refresh()
