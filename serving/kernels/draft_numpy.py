"""The draft model in numpy and float32: the reference for the C++ kernel, and the fallback without a compiler.

Layers and attention are Llama's (Touvron et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.kernels.draft_base import (
    MAX_GENERATED,
    NUM_TOP,
    Cache,
    DraftKernel,
    Floats,
    Ints,
    TopTokens,
    rotary_tables,
)
from serving.weights.draft_weights import EPS, HEAD_DIM, MAX_TOKENS, VECTOR_EPS, DraftLayer, DraftWeights


class NumpyDraft(DraftKernel):
    """See `DraftKernel`."""

    _cache_type = np.float32

    def __init__(self, weights: DraftWeights) -> None:
        super().__init__(weights)
        self._vectors: dict[int, tuple[Floats, float]] = {}
        self._stacked: tuple[Ints, Floats, Floats] | None = None
        self._last_hidden = np.zeros(weights.size, np.float32)  # for the last token of the last call
        self._cos, self._sin = rotary_tables()
        self._float32 = {id(a): a.astype(np.float32) for layer in weights.layers for a in vars(layer).values()}
        self._project, self._bias, self._head = (
            a.astype(np.float32) for a in (weights.project, weights.bias, weights.head)
        )

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
        """See `DraftKernel`."""
        if ids:
            x = np.stack([self._vector(token)[0] for token in ids])
            for layer, layer_cache in zip(self._weights.layers, cache, strict=True):
                x = self._layer(layer, layer_cache, start, x, bidirectional)
            self._last_hidden = x[-1]
        if allowed is not None:
            bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")
            candidates = candidates[bits[candidates] == 1]
        if not len(candidates):
            return [], []
        query = self._head @ (_normed(self._last_hidden, EPS) * self._weights.final_norm)
        vectors, biases = self._stacked_vectors(candidates)
        scores = vectors @ query + biases
        weights = np.exp(scores - scores.max())
        top = np.argsort(-scores, kind="stable")[:NUM_TOP]
        return candidates[top].tolist(), (weights[top] / weights.sum()).tolist()

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
        """See `DraftKernel`."""
        tokens, top_probabilities = self.run(cache, start, ids, candidates, bidirectional=bidirectional)
        generated: list[int] = []
        probabilities: list[float] = []
        room = min(max_tokens, MAX_GENERATED, MAX_TOKENS - start - len(ids))
        while len(generated) < room and top_probabilities and top_probabilities[0] >= min_confidence:
            first, previous = len(generated), [*ids, *generated][-1]
            token, probability = tokens[0], top_probabilities[0]
            while True:
                generated.append(token)
                probabilities.append(probability)
                third = self._weights.trigrams.get((previous, token))
                if third is None or len(generated) == room:
                    break
                previous, token, probability = token, third, 1.0
            tokens, top_probabilities = self.run(cache, start + len(ids) + first, generated[first:], candidates)
        return generated, probabilities, (tokens, top_probabilities)

    def _stacked_vectors(self, tokens: Ints) -> tuple[Floats, Floats]:
        """Vectors [n, size] and biases [n] of tokens; those of the last call are reused for the same array."""
        if self._stacked is None or self._stacked[0] is not tokens:
            entries = [self._vector(token) for token in tokens.tolist()]
            biases = np.array([bias for _, bias in entries], np.float32)
            self._stacked = (tokens, np.stack([vector for vector, _ in entries]), biases)
        return self._stacked[1:]

    def _vector(self, token: int) -> tuple[Floats, float]:
        """A token's normalized vector [size] and its output bias, computed once."""
        entry = self._vectors.get(token)
        if entry is None:
            row = self._weights.embedding[token]
            if row.dtype == np.uint16:
                row = (row.astype(np.uint32) << 16).view(np.float32)
            row = row.astype(np.float32)
            entry = self._vectors[token] = _normed(self._project @ row, VECTOR_EPS), float(self._bias @ row)
        return entry

    def _layer(self, layer: DraftLayer, cache: Floats, start: int, x: Floats, bidirectional: bool) -> Floats:
        """One layer for tokens x [count, size] at `start`; cache: [2, heads, MAX_TOKENS, HEAD_DIM]."""
        count, size = x.shape
        wide = {name: self._float32[id(array)] for name, array in vars(layer).items()}
        qkv = (_normed(x, EPS) * layer.input_norm) @ wide["qkv"].T
        query, key, value = qkv.reshape(count, 3, size // HEAD_DIM, HEAD_DIM).transpose(1, 2, 0, 3)
        end = start + count
        cache[0, :, start:end], cache[1, :, start:end] = self._rotated(key, start), value
        keys, values = cache[:, :, :end]
        scores = self._rotated(query, start) @ keys.swapaxes(1, 2) * HEAD_DIM**-0.5
        if not bidirectional:
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
