"""Make one adapter in memory out of several that are loaded, as the list of adapters says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import reduce

import torch

from serving.adapters.adapter_store import Loaded
from serving.adapters.combination import Combination
from serving.adapters.combine import LowRank, combine_layer
from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError
from serving.kernels.lora import LoraAdapter, LoraMatrices, Projection
from serving.models.lora_loader import LoadedAdapter, layer_name


def combine_adapters(entry: AdapterEntry, parts: Mapping[str, Loaded[LoraAdapter]]) -> LoadedAdapter:
    """The combined adapter. A layer has the widest type of its parts; the digest is that of the parts and the recipe.

    Args:
        entry: of the list, with a combination and the limit of the result's ranks.
        parts: the adapters by name, all for one model.

    Raises:
        AdapterError: they cannot be combined, or a rank is over the limit.
    """
    combination = entry.combination
    assert combination is not None
    layers = tuple(
        tuple(
            _combine(
                layer_name(number, projection),
                {name: part.lora.layers[number][projection] for name, part in parts.items()},
                combination,
            )
            for projection in Projection
        )
        for number in range(len(next(iter(parts.values())).lora.layers))
    )
    lora = LoraAdapter(layers)
    if lora.max_rank > entry.max_rank:
        raise AdapterError(f"the result has rank {lora.max_rank}, the limit is {entry.max_rank}; raise its max_rank")
    content = f"{asdict(combination)} {[parts[name].digest for name in combination.names]}"
    return LoadedAdapter(lora, f"sha256:{hashlib.sha256(content.encode()).hexdigest()}")


def _combine(layer: str, parts: Mapping[str, LoraMatrices], combination: Combination) -> LoraMatrices:
    """One projection; rank 0 where none of the adapters changes it."""
    changes = {name: LowRank(part.down, part.up.T, part.scaling) for name, part in parts.items() if part.rank}
    if not changes:
        return next(iter(parts.values()))
    dtype = reduce(torch.promote_types, (part.a.dtype for part in changes.values()))
    combined = combine_layer(layer, changes, combination).to(dtype)
    return LoraMatrices(combined.a.contiguous(), combined.b.T.contiguous(), combined.scaling)
