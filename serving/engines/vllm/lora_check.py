"""Check an adapter before vLLM loads it: vLLM drops or half reads some of what does not fit, and says nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from serving.errors import WeightsError
from serving.models.lora_loader import refuse_unserved
from serving.weights.adapter_config import read_adapter_config
from serving.weights.adapter_files import TENSORS
from serving.weights.safetensors_header import read_safetensors_header

_LAYER: Final = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
Shapes = dict[str, tuple[int, int]]


def base_shapes(weights_dir: Path) -> Shapes:
    """Inputs and outputs of the base's linear layers, by module name, for all formats that say them.

    Raises:
        WeightsError: a file of the base is damaged.
    """
    shapes: Shapes = {}
    for path in sorted(weights_dir.glob("*.safetensors")):
        for name, entry in read_safetensors_header(path).tensors.items():
            module, _, kind = name.rpartition(".")
            if len(entry.shape) != 2:
                continue
            first, second = entry.shape
            if kind == "weight":
                shapes[module] = second, first
            elif kind == "qweight":  # AWQ: eight outputs in a number
                shapes[module] = first, second * 8
            elif kind == "weight_packed":  # compressed-tensors: eight inputs in a number
                shapes[module] = second * 8, first
    return shapes


def check_lora(folder: Path, base: Shapes, *, max_rank: int, max_bytes: int) -> int:
    """Check an adapter by its configuration and the shapes of its tensors; return its bytes.

    Args:
        folder: where PEFT wrote it.
        base: see `base_shapes`.
        max_rank: limit of its ranks.
        max_bytes: limit of its tensors.

    Raises:
        WeightsError: it is damaged, too large, of another model, or of a kind that vLLM does not compute.
    """
    config = read_adapter_config(folder)
    refuse_unserved(folder, config)
    path = folder / TENSORS
    if not path.is_file():
        raise WeightsError(f"{folder} has no {TENSORS}; save the adapter with safe_serialization=True")
    header = read_safetensors_header(path)
    size = path.stat().st_size - header.data_start
    if size > max_bytes:
        raise WeightsError(f"{path} has {size:,} bytes of tensors, the limit is {max_bytes:,}; set ADAPTER_MEMORY_MB")
    for name, entry in header.tensors.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            raise WeightsError(f"{path}: {name} is no part of a linear layer's adapter; merge it: scripts/merge_lora")
        if match[1] not in base:
            raise WeightsError(f"{path}: {name} is of a layer that the base does not have")
        if f"base_model.model.{match[1]}.lora_{'B' if match[2] == 'A' else 'A'}.weight" not in header.tensors:
            raise WeightsError(f"{path}: {match[1]} has only one of A and B; the adapter is incomplete")
        inputs, outputs = base[match[1]]
        rank = config.rank_of(match[1])
        if rank > max_rank:
            raise WeightsError(
                f"{path}: {match[1]} has rank {rank}, the limit is {max_rank}; raise max_rank in adapters.yaml"
            )
        expected = (rank, inputs) if match[2] == "A" else (outputs, rank)
        if entry.shape != expected:
            raise WeightsError(
                f"{path}: {name} is {list(entry.shape)}, this model needs {list(expected)}; was the adapter trained on "
                "another model?"
            )
    return size
