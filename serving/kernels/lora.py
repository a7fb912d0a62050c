"""Low-rank adapters (Hu et al. 2021) of the linear layers, and which rows of a batch use which.

A row's output is W x + up (scaling · down x). All seven projections of a layer may have an adapter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor


class Projection(IntEnum):
    """A linear layer's place among those of a decoder layer."""

    QUERY = 0
    KEY = 1
    VALUE = 2
    OUTPUT = 3
    GATE = 4
    UP = 5
    DOWN = 6


@dataclass(frozen=True)
class LoraSite:
    """Projections of one decoder layer that share a matmul, in the order of their outputs, which are side by side."""

    layer: int
    projections: tuple[Projection, ...]


QKV = (Projection.QUERY, Projection.KEY, Projection.VALUE)
GATE_UP = (Projection.GATE, Projection.UP)


@dataclass(frozen=True)
class LoraMatrices:
    """The adapter of one projection; rank 0 changes nothing. Both matrices have the same dtype, any float."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [rank, outputs]
    scaling: float

    @property
    def rank(self) -> int:
        """Number of rows of both matrices."""
        return int(self.down.shape[0])


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """An adapter of a whole model: for each decoder layer one entry for each `Projection`, in its order."""

    layers: tuple[tuple[LoraMatrices, ...], ...]

    @property
    def max_rank(self) -> int:
        """The largest rank of a projection."""
        return max(matrices.rank for layer in self.layers for matrices in layer)

    @property
    def nbytes(self) -> int:
        """Memory that its matrices take."""
        return sum(one.down.nbytes + one.up.nbytes for layer in self.layers for one in layer)


@dataclass(frozen=True)
class LoraSegment:
    """Neighbouring rows of a batch that use the same adapter: `first` to `stop` - 1."""

    first: int
    stop: int
    adapter: LoraAdapter


@dataclass(frozen=True)
class LoraBatch:
    """The rows of a batch that use adapters; other rows are computed as if there were none."""

    segments: tuple[LoraSegment, ...]
