"""Random adapters for tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from serving.kernels.lora import LoraAdapter, LoraMatrices, Projection

NARROW = ((40, 24), (40, 8), (40, 8), (24, 40), (40, 51), (40, 51), (51, 40))  # inputs and outputs of each projection


def random_adapter(
    ranks: Sequence[int],
    *,
    num_layers: int = 1,
    shapes: Sequence[tuple[int, int]] = NARROW,
    dtype: torch.dtype = torch.float32,
    size: float = 1.0,
) -> LoraAdapter:
    """An adapter with a rank for each projection, or one rank for all."""
    each = list(ranks) if len(ranks) > 1 else list(ranks) * len(Projection)
    return LoraAdapter(
        tuple(
            tuple(
                LoraMatrices(
                    (torch.randn(rank, inputs) * size).to(dtype), (torch.randn(rank, outputs) * size).to(dtype), 0.75
                )
                for rank, (inputs, outputs) in zip(each, shapes, strict=True)
            )
            for _ in range(num_layers)
        )
    )
