"""The change that one LoRA layer (Hu et al. 2021) makes to a weight, with a fixed order of sums.

Matrix products of libraries are avoided, because they order sums differently on different CPUs, and the default weights
must be the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.weights.tensors import Array

_ELEMENTS_AT_ONCE = 2**17  # of a product; they stay in the CPU's cache


@dataclass(frozen=True, slots=True)
class LoraChange:
    """The change of a weight [N, K] as a checkpoint stores it.

    Attributes:
        up: [N, rank] float32.
        down: [rank, K] float32.
        scaling: factor of their product.
        magnitude: DoRA's norms (Liu et al. 2024), [N] of rows or [K] of columns; None for plain LoRA.
        by_column: whether the norms are those of columns: embeddings, and weights that are stored transposed.
    """

    up: Array
    down: Array
    scaling: float
    magnitude: Array | None = None
    by_column: bool = False

    def delta(self, begin: int, end: int) -> Array:
        """Rows `begin` to `end` of scaling · up down, summed over the rank in order."""
        total = np.empty((end - begin, self.down.shape[1]), dtype=np.float32)
        step = max(1, _ELEMENTS_AT_ONCE // self.down.shape[1])
        for first in range(0, end - begin, step):
            rows = slice(first, min(first + step, end - begin))
            product = _ordered_product(self.up[begin + rows.start : begin + rows.stop], self.down)
            np.multiply(product, np.float32(self.scaling), out=total[rows])
        return total

    def normalize(self, changed: Array, begin: int, column_norms: Array | None = None) -> Array:
        """DoRA: `changed`, the weight's rows from `begin` with their delta, with the norms that were trained."""
        if self.magnitude is None:
            return changed
        if self.by_column:
            return np.asarray(changed * (self.magnitude / column_norms))
        norms = np.sqrt(np.square(changed).sum(axis=1))
        norms[np.isinf(norms)] = np.nan  # not weights of zero
        return np.asarray(changed * (self.magnitude[begin : begin + len(changed)] / norms)[:, None])

    @property
    def needs_column_norms(self) -> bool:
        """Whether `normalize` needs the norms of the whole changed weight's columns."""
        return self.magnitude is not None and self.by_column

    def merge(self, weight: Array) -> Array:
        """A whole weight with the change, in float32."""
        changed = weight.astype(np.float32) + self.delta(0, len(weight))
        norms = np.sqrt(np.square(changed).sum(axis=0)) if self.needs_column_norms else None
        return self.normalize(changed, 0, norms)


def _ordered_product(up: Array, down: Array) -> Array:
    """up [n, rank] · down [rank, k], summed over the rank in order."""
    total = up[:, :1] * down[:1]
    term = np.empty_like(total)
    for index in range(1, down.shape[0]):
        np.multiply(up[:, index : index + 1], down[index : index + 1], out=term)
        np.add(total, term, out=total)
    return total
