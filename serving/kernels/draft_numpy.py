"""A draft model in numpy: the twin of the C++ code, and what runs where that cannot be compiled.

Owns: the arithmetic, in float32. Layers and attention as in Llama (Touvron et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.draft_weights import EPS, HEAD_DIM, MAX_TOKENS, VECTOR_EPS, DraftLayer, DraftWeights
from serving.kernels.draft_base import (
    BEST,
    MOST_WRITTEN,
    Best,
    Cache,
    DraftKernelBase,
    Floats,
    Ints,
    rotary_tables,
)


class NumpyDraft(DraftKernelBase):
    """See `DraftKernel`."""

    def __init__(self, weights: DraftWeights) -> None:
        super().__init__(weights)
        self._vectors: dict[int, tuple[Floats, float]] = {}
        self._stacked: tuple[Ints, Floats, Floats] | None = None
        self._last = np.zeros(weights.size, np.float32)  # what the last row of the last call came to
        self._cos, self._sin = rotary_tables()
        self._wide = {id(a): a.astype(np.float32) for layer in weights.layers for a in vars(layer).values()}
        self._project, self._bias, self._head = (
            a.astype(np.float32) for a in (weights.project, weights.bias, weights.head)
        )

    def new_cache(self) -> Cache:
        """See `DraftKernel`."""
        return np.empty(self._cache_shape, np.float32)

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
        """See the protocol."""
        if ids:
            x = np.stack([self._meet(token)[0] for token in ids])
            for layer, kept in zip(self._weights.layers, cache, strict=True):
                x = self._layer(layer, kept, start, x, together)
            self._last = x[-1]
        if allowed is not None:
            bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")
            candidates = candidates[bits[candidates] == 1]
        if not len(candidates):
            return [], []
        aim = self._head @ (_normed(self._last, EPS) * self._weights.final_norm)
        vectors, biases = self._meet_all(candidates)
        scores = vectors @ aim + biases
        chances = np.exp(scores - scores.max())
        best = np.argsort(-scores, kind="stable")[:BEST]
        return candidates[best].tolist(), (chances[best] / chances.sum()).tolist()

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
        """See the protocol."""
        tokens, chances = self.run(cache, start, ids, candidates, together=together)
        written: list[int] = []
        shares: list[float] = []
        room = min(most, MOST_WRITTEN, MAX_TOKENS - start - len(ids))
        while len(written) < room and chances and chances[0] >= sure:
            first, before = len(written), [*ids, *written][-1]
            token, share = tokens[0], chances[0]
            while True:
                written.append(token)
                shares.append(share)
                known = self._weights.always.get((before, token))
                if known is None or len(written) == room:
                    break
                before, token, share = token, known, 1.0
            tokens, chances = self.run(cache, start + len(ids) + first, written[first:], candidates)
        return written, shares, (tokens, chances)

    def _meet_all(self, tokens: Ints) -> tuple[Floats, Floats]:
        """Vectors and biases; a request asks for the same again and again."""
        if self._stacked is None or self._stacked[0] is not tokens:
            known = [self._meet(token) for token in tokens.tolist()]
            biases = np.array([bias for _, bias in known], np.float32)
            self._stacked = (tokens, np.stack([vector for vector, _ in known]), biases)
        return self._stacked[1:]

    def _meet(self, token: int) -> tuple[Floats, float]:
        known = self._vectors.get(token)
        if known is None:
            row = self._weights.embedding[token]
            if row.dtype == np.uint16:
                row = (row.astype(np.uint32) << 16).view(np.float32)
            row = row.astype(np.float32)
            known = self._vectors[token] = (
                _normed(self._project @ row, VECTOR_EPS),
                float(self._bias @ row),
            )
        return known

    def _layer(self, layer: DraftLayer, kept: Floats, start: int, x: Floats, together: bool) -> Floats:
        count, size = x.shape
        wide = {name: self._wide[id(array)] for name, array in vars(layer).items()}
        qkv = (_normed(x, EPS) * layer.input_norm) @ wide["qkv"].T
        query, key, value = qkv.reshape(count, 3, size // HEAD_DIM, HEAD_DIM).transpose(1, 2, 0, 3)
        end = start + count
        kept[0, :, start:end], kept[1, :, start:end] = self._rotated(key, start), value
        keys, values = kept[:, :, :end]
        scores = self._rotated(query, start) @ keys.swapaxes(1, 2) * HEAD_DIM**-0.5
        if not together:
            scores[:, np.arange(end) > np.arange(start, end)[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ values
        x = x + mixed.swapaxes(0, 1).reshape(count, size) @ wide["output"].T
        gate, up = np.split((_normed(x, EPS) * layer.post_attention_norm) @ wide["gate_up"].T, 2, -1)
        result: Floats = x + (gate / (1 + np.exp(-gate)) * up) @ wide["down"].T
        return result

    def _rotated(self, x: Floats, start: int) -> Floats:
        cos, sin = (table[start : start + x.shape[1]] for table in (self._cos, self._sin))
        first, second = np.split(x, 2, -1)
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def _normed(x: Floats, eps: float) -> Floats:
    result: Floats = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(eps))
    return result
