"""Round weights to four bits so that rounding errors cancel in a layer's outputs; the same bytes on every machine.

GPTQ (Frantar et al. 2022, arXiv:2210.17323) rounds the weights of one input channel after another. Before each, it
corrects the weights for the errors made so far, by the second moments H [K, K] of the layer's inputs. H is too large
to commit, and its Cholesky factor differs between machines in the last digits.

So H is approximated by D + U'U, with D diagonal and U [rank, K]. GPTQ's correction then depends on U e only, where e
are the errors of the channels rounded so far: `rank` numbers for each output. All of it is elementwise numpy in a fixed
order: sums go over the first axis of C-ordered arrays, which numpy adds row after row.

    packed = quantize_with_feedback(weight, clipped, group_size=128, feedback=search.feedback[layer])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.weights.awq_format import MAX_LEVEL, PackedWeight, grid, pack
from pipeline.weights.tensors import Array

_FACTOR_STEPS = 127  # factors are stored as int8
_DAMPING = 0.01  # of the mean second moment, added to each, as in GPTQ


@dataclass(frozen=True, eq=False)
class Feedback:
    """The approximate second moments of the inputs that some linear layers share.

    Args:
        norms: the root mean square of each input channel, [K] fp32.
        factors: [rank, K] int8: U divided by the norms, in steps of 1 / 127.
    """

    layers: tuple[str, ...]
    norms: Array
    factors: Array

    @classmethod
    def of(cls, layers: tuple[str, ...], norms: Array, components: Array) -> Feedback:
        """The moments that norms [K] and U [rank, K], the inputs' largest principal components, approximate."""
        relative = np.divide(components, norms, out=np.zeros_like(components), where=norms > 0)
        factors = np.clip(np.rint(relative * _FACTOR_STEPS), -_FACTOR_STEPS, _FACTOR_STEPS)
        return cls(layers, norms.astype(np.float32), np.ascontiguousarray(factors, np.int8))

    @property
    def components(self) -> Array:
        """The matrix U, [rank, K] fp64."""
        return self.factors.astype(np.float64) / _FACTOR_STEPS * self.norms.astype(np.float64)

    @property
    def diagonal(self) -> Array:
        """The diagonal D, [K] fp64: the mean squares that U'U does not explain, plus damping."""
        squares = self.norms.astype(np.float64) ** 2
        explained = np.add.reduce((self.factors.astype(np.float64) / _FACTOR_STEPS) ** 2, axis=0)
        damping = _DAMPING * math.fsum(squares) / len(squares)
        remaining: Array = squares * np.maximum(1 - explained, 0) + (damping or 1.0)
        return remaining

    @cached_property
    def corrections(self) -> Array:
        """The matrix V, [rank, K] fp32. It corrects weight j by -V[:, j] · U e, with errors e of the channels before j.

        V[:, j] = P u / (d + u'P u), where P is the inverse of I + Σ u u' / d over the channels after j. It is updated
        from the last channel to the first by the Sherman–Morrison formula.
        """
        components, diagonal = self.components, self.diagonal
        inverse = np.eye(len(components))
        corrections = np.empty_like(components)
        for channel in range(components.shape[1] - 1, -1, -1):
            u = components[:, channel]
            projected = np.add.reduce(inverse * u[:, None], axis=0)
            total = diagonal[channel] + math.fsum(u * projected)
            corrections[:, channel] = projected / total
            inverse -= projected[:, None] * corrections[:, channel]
        return corrections.astype(np.float32)


def quantize_with_feedback(weight: Array, clipped: Array, group_size: int, feedback: Feedback) -> PackedWeight:
    """Round a weight to four bits, each input channel with a correction for the errors of those before it.

    Args:
        weight: [N, K] fp32, with AWQ's scales.
        clipped: the same weight with AWQ's clips, which decide the steps and zero points of the groups.
        group_size: weights that share a step.
        feedback: the moments of the layer's inputs.
    """
    scales, zeros = grid(clipped, group_size)
    steps = np.ascontiguousarray(scales.astype(np.float32).T)  # [K // g, N]
    levels = _levels(np.ascontiguousarray(weight.T), steps, np.ascontiguousarray(zeros.T), group_size, feedback)
    return PackedWeight(qweight=pack(levels), qzeros=pack(zeros.T), scales=np.ascontiguousarray(scales.T))


def _levels(weight: Array, steps: Array, zeros: Array, group_size: int, feedback: Feedback) -> Array:
    """The levels of a transposed weight: [K, N] uint8."""
    components, corrections = feedback.components.astype(np.float32), feedback.corrections
    levels = np.empty(weight.shape, np.uint8)
    errors = np.zeros((len(components), weight.shape[1]), np.float32)  # U e
    product = np.empty_like(errors)
    for channel, exact in enumerate(weight):
        step, zero = steps[channel // group_size], zeros[channel // group_size]
        np.multiply(errors, corrections[:, channel, None], out=product)
        wanted = exact - np.add.reduce(product, axis=0)
        level = np.clip(np.rint(wanted / step) + zero, 0, MAX_LEVEL)
        levels[channel] = level
        np.multiply(components[:, channel, None], (level - zero) * step - exact, out=product)
        errors += product
    return levels
