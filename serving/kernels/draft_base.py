"""The seam between the drafter and what computes a draft model.

Owns: the `DraftKernel` protocol and what all of its kind share. Imports no torch: what plans a pass calls it.

    tokens, chances = kernel.run(kernel.new_cache(), start=0, ids=ids, candidates=candidates)
    written, shares, last = kernel.write(cache, start=0, ids=ids, candidates=candidates, most=8, sure=0.9)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.draft_weights import HEAD_DIM, MAX_TOKENS, ROPE_THETA, DraftWeights

BEST = 4  # guesses at each place
CACHE_BLOCK = (
    16  # places that a cache may keep in an order of its own (kDraftBlock): copied whole or not at all
)
MOST_WRITTEN = 16  # tokens in one call: some are refused afterwards, and all behind them were written in vain
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Cache = NDArray[np.float32] | NDArray[np.uint16]  # the latter holds bfloat16
Best = tuple[list[int], list[float]]  # tokens, likeliest first, and the share of each among all candidates


class DraftKernel(Protocol):
    """Computes for one request at a time, on the thread that asks."""

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        ...

    def new_cache(self) -> Cache:
        """Keys and values of a request: [layers, 2, heads, MAX_TOKENS, HEAD_DIM], by place along MAX_TOKENS.

        Memory is taken as it fills. CACHE_BLOCK places lie together, in whatever order a kernel likes.
        """
        ...

    def run(
        self,
        cache: Cache,
        start: int,
        ids: Sequence[int],
        candidates: Ints,
        allowed: Ints | None = None,
        *,
        together: bool = False,
    ) -> Best:
        """The BEST candidates to follow `ids`, likeliest first, and their share among all candidates.

        `ids` stand at `start` and behind, at most MAX_TOKENS in all; what was there before is forgotten.
        Each sees what stands before it, and those behind it too if they are read `together`.
        No ids: the place of the call before again. allowed: [ceil(V / 32)] a bit for each token, the lowest
        first; others are no candidates. Of fewer candidates, all are returned.
        """
        ...

    def write(
        self,
        cache: Cache,
        start: int,
        ids: Sequence[int],
        candidates: Ints,
        *,
        most: int,
        sure: float,
        together: bool = False,
    ) -> tuple[list[int], list[float], Best]:
        """As `run`, and on with the likeliest for as long as its share is at least `sure`.

        Behind a token that is written, what always follows it and the one before is written as it is, with
        a share of 1. Returns tokens, at most `most` and MOST_WRITTEN, the share of each, and what may follow.
        There must be `ids`.
        """
        ...


def rotary_tables() -> tuple[Floats, Floats]:
    """Cosines and sines by place, each [MAX_TOKENS, HEAD_DIM // 2]."""
    steps = np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)
    angles = np.arange(MAX_TOKENS)[:, None] * ROPE_THETA**-steps
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class DraftKernelBase:
    """What does not depend on how a kernel computes."""

    def __init__(self, weights: DraftWeights) -> None:
        self._weights = weights

    @property
    def vocab_size(self) -> int:
        """See `DraftKernel`."""
        return len(self._weights.embedding)

    @property
    def _cache_shape(self) -> tuple[int, ...]:
        weights = self._weights
        return len(weights.layers), 2, weights.size // HEAD_DIM, MAX_TOKENS, HEAD_DIM
