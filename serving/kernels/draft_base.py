"""The interface between the drafter and the kernels that run a draft model.

Imports no torch, because the code that plans a step does not.

    tokens, probabilities = kernel.run(kernel.new_cache(), start=0, ids=ids, candidates=candidates)
    generated, probabilities, next_top = kernel.generate(
        cache, start=0, ids=ids, candidates=candidates, max_tokens=8, min_confidence=0.9
    )
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.weights.draft_weights import HEAD_DIM, MAX_TOKENS, ROPE_THETA, DraftWeights

NUM_TOP = 4  # likeliest candidates that a call returns
CACHE_BLOCK = 16  # positions in a block of a cache (kDraftBlock in C++); only whole blocks can be copied
MAX_GENERATED = 16  # tokens in one call; the target model may reject the first of them, which wastes the others
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Cache = NDArray[np.float32] | NDArray[np.uint16]  # uint16 holds the bits of bfloat16
TopTokens = tuple[list[int], list[float]]  # tokens, likeliest first, and the probability of each among all candidates


class DraftKernel(ABC):
    """Runs a draft model for one request at a time, on the calling thread."""

    _cache_type: type[Any]  # np.float32 or np.uint16

    def __init__(self, weights: DraftWeights) -> None:
        self._weights = weights

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return len(self._weights.embedding)

    @property
    def nbytes(self) -> int:
        """The memory of the weights in bytes, of which each kernel has a copy in a form of its own.

        The embedding is the checkpoint's, and does not count.
        """
        return 2 * self._weights.nbytes

    def new_cache(self) -> Cache:
        """Keys and values of one request: [layers, 2, heads, MAX_TOKENS, HEAD_DIM], uninitialized.

        Memory pages are allocated as the cache fills. The layout within a block of CACHE_BLOCK positions is the
        kernel's own.
        """
        layers, heads = len(self._weights.layers), self._weights.size // HEAD_DIM
        return np.empty((layers, 2, heads, MAX_TOKENS, HEAD_DIM), self._cache_type)

    @abstractmethod
    def run(
        self,
        cache: Cache,
        start: int,
        ids: Sequence[int],
        candidates: Ints,
        allowed: Ints | None = None,
        *,
        bidirectional: bool = False,
    ) -> TopTokens:
        """Append `ids` at position `start`; return the NUM_TOP likeliest candidates to follow, or all if fewer.

        Args:
            cache: overwritten from `start` on.
            start: number of tokens before `ids`.
            ids: at most MAX_TOKENS - start tokens; none ranks candidates again after the last call's tokens.
            candidates: token ids to choose from.
            allowed: [ceil(V / 32)] bitmask, lowest bit first; candidates without a bit are left out.
            bidirectional: whether `ids` all see each other; otherwise attention is causal.
        """

    @abstractmethod
    def generate(
        self,
        cache: Cache,
        start: int,
        ids: Sequence[int],
        candidates: Ints,
        *,
        max_tokens: int,
        min_confidence: float,
        bidirectional: bool = False,
    ) -> tuple[list[int], list[float], TopTokens]:
        """Like `run`, then generate the likeliest tokens greedily while their probability is `min_confidence` or more.

        After each generated token, the tokens that the model's trigrams determine follow with probability 1. At most
        `max_tokens` and MAX_GENERATED tokens are generated, and no more than fit MAX_TOKENS. `ids` must not be empty.

        Returns:
            The generated tokens, their probabilities, and the likeliest tokens to follow them.
        """


def rotary_tables() -> tuple[Floats, Floats]:
    """Cosines and sines by position, each [MAX_TOKENS, HEAD_DIM // 2]."""
    exponents = np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)
    angles = np.arange(MAX_TOKENS)[:, None] * ROPE_THETA**-exponents
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
