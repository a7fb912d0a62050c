"""Load an adapter that PEFT wrote, for a model in memory, and refuse by name what only a merge can do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor

from serving.errors import WeightsError
from serving.kernels.base import DecoderWeights
from serving.kernels.lora import LoraAdapter, LoraMatrices, Projection
from serving.weights.adapter_config import AdapterConfig, read_adapter_config
from serving.weights.adapter_files import CONFIG, TENSORS, Loaded, adapter_digest
from serving.weights.safetensors_header import SafetensorsHeader, TensorEntry, read_safetensors_header

_LAYER: Final = re.compile(r"base_model\.model\.(model\.layers\.(\d+)\.(\w+\.\w+))\.lora_(A|B)(?:\.default)?\.weight")
_PROJECTIONS: Final = {
    "self_attn.q_proj": Projection.QUERY,
    "self_attn.k_proj": Projection.KEY,
    "self_attn.v_proj": Projection.VALUE,
    "self_attn.o_proj": Projection.OUTPUT,
    "mlp.gate_proj": Projection.GATE,
    "mlp.up_proj": Projection.UP,
    "mlp.down_proj": Projection.DOWN,
}
# What tensors with such a part in their name are.
_KINDS: Final = {
    "lora_magnitude_vector": "DoRA's magnitudes",
    "lora_embedding": "an adapter of the embedding",
    "token_adapter": "trained rows of the embedding",
    "modules_to_save": "a whole trained layer (modules_to_save)",
    "embed_tokens": "a trained embedding",
    "lm_head": "an adapter of the head",
    "bias": "a trained bias",
}
_MERGE: Final = "it can only be merged: scripts/merge_lora"
_DTYPES: Final = ("F32", "F16", "BF16")


@dataclass(slots=True)
class _Layer:
    """Names of the two tensors of a projection."""

    down: str = ""
    up: str = ""


def load_lora(folder: Path, weights: DecoderWeights, *, max_rank: int, max_bytes: int) -> Loaded[LoraAdapter]:
    """Read and check an adapter.

    Raises:
        WeightsError: it is damaged, too large, of another model, or of a kind that is not computed row by row.
    """
    config, header, _ = read_served(folder, max_bytes)
    settings, path = (folder / CONFIG).read_bytes(), folder / TENSORS
    layers = _sort(path, header, len(weights.layers))
    for (number, projection), layer in layers.items():
        _check(path, header, config, layer, weights.projections[projection], max_rank, layer_name(number, projection))
    data = path.read_bytes()
    tensors = load_safetensors(data)
    if read_adapter_config(folder) != config or {name: tuple(t.shape) for name, t in tensors.items()} != {
        name: entry.shape for name, entry in header.tensors.items()
    }:
        raise WeightsError(f"{folder} changed while it was read; try again when it is complete")
    matrices = {
        place: _matrices(path, tensors, layer, config.scaling_of(layer_name(*place))) for place, layer in layers.items()
    }
    digest = adapter_digest(folder, {CONFIG: settings, TENSORS: data})
    return Loaded(LoraAdapter(_fill(matrices, weights)), digest)


def read_served(folder: Path, max_bytes: int) -> tuple[AdapterConfig, SafetensorsHeader, int]:
    """The configuration of an adapter, the header of its tensors, and their bytes.

    Raises:
        WeightsError: it is damaged, has more bytes, or only a merge can do what its configuration says.
    """
    config = read_adapter_config(folder)
    found = {
        "use_dora": config.dora,
        "fan_in_fan_out": config.fan_in_fan_out,
        "modules_to_save": list(config.saved),
        "trainable_token_indices": config.token_indices,
    }
    for key, value in found.items():
        if value:
            raise WeightsError(f"{config.path}: {key} is {value!r}, which is not served on demand; {_MERGE}")
    path = folder / TENSORS
    if not path.is_file():
        raise WeightsError(f"{folder} has no {TENSORS}; save the adapter with safe_serialization=True")
    header = read_safetensors_header(path)
    size = path.stat().st_size - header.data_start
    if size > max_bytes:
        raise WeightsError(f"{path} has {size:,} bytes of tensors, the limit is {max_bytes:,}; set ADAPTER_MEMORY_MB")
    return config, header, size


def _sort(path: Path, header: SafetensorsHeader, num_layers: int) -> dict[tuple[int, Projection], _Layer]:
    """The tensors by layer and projection."""
    layers: dict[tuple[int, Projection], _Layer] = {}
    for name in header.tensors:
        match = _LAYER.fullmatch(name)
        if match is None or match[3] not in _PROJECTIONS:
            kind = next((text for part, text in _KINDS.items() if part in name), "not part of a linear layer's adapter")
            raise WeightsError(f"{path}: {name} is {kind}, which is not served on demand; {_MERGE}")
        if int(match[2]) >= num_layers:
            raise WeightsError(f"{path}: {name} is of another model; this one has {num_layers} layers")
        layer = layers.setdefault((int(match[2]), _PROJECTIONS[match[3]]), _Layer())
        attribute = "down" if match[4] == "A" else "up"
        if getattr(layer, attribute):
            raise WeightsError(f"{path}: {name} is there twice; save the adapter again")
        setattr(layer, attribute, name)
    if not layers:
        raise WeightsError(f"{path} has no tensors; save the adapter again")
    return layers


def _check(
    path: Path,
    header: SafetensorsHeader,
    config: AdapterConfig,
    layer: _Layer,
    shape: tuple[int, int],
    max_rank: int,
    name: str,
) -> None:
    if not (layer.down and layer.up):
        raise WeightsError(f"{path}: {name} has only one of A and B; the adapter is incomplete")
    rank, (inputs, outputs) = config.rank_of(name), shape
    if rank > max_rank:
        raise WeightsError(f"{path}: {name} has rank {rank}, the limit is {max_rank}; raise max_rank in adapters.yaml")
    for tensor, expected in ((layer.down, (rank, inputs)), (layer.up, (outputs, rank))):
        entry: TensorEntry = header.tensors[tensor]
        if entry.shape != expected or entry.dtype not in _DTYPES:
            raise WeightsError(
                f"{path}: {tensor} is {entry.dtype} {list(entry.shape)}, this model needs "
                f"{' or '.join(_DTYPES)} {list(expected)}; was the adapter trained on another model?"
            )


def _matrices(path: Path, tensors: Mapping[str, Tensor], layer: _Layer, scaling: float) -> LoraMatrices:
    down, up = tensors[layer.down], tensors[layer.up].T
    if down.dtype != up.dtype:
        down, up = down.float(), up.float()
    for name, tensor in ((layer.down, down), (layer.up, up)):
        if not torch.isfinite(tensor).all():
            raise WeightsError(f"{path}: {name} has values that are not finite; the training has diverged")
    return LoraMatrices(down.clone(), up.clone(memory_format=torch.contiguous_format), scaling)  # not the whole file


def _fill(
    matrices: Mapping[tuple[int, Projection], LoraMatrices], weights: DecoderWeights
) -> tuple[tuple[LoraMatrices, ...], ...]:
    """All projections of all layers; those without an adapter get rank 0."""
    unchanged = [
        LoraMatrices(torch.empty(0, inputs), torch.empty(0, outputs), 0.0) for inputs, outputs in weights.projections
    ]
    return tuple(
        tuple(matrices.get((number, projection), unchanged[projection]) for projection in Projection)
        for number in range(len(weights.layers))
    )


def layer_name(number: int, projection: Projection) -> str:
    """A projection's name in the checkpoint."""
    part = next(name for name, value in _PROJECTIONS.items() if value is projection)
    return f"model.layers.{number}.{part}"
