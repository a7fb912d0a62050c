"""What would the model answer? Guesses of a much smaller one that reads the question.

Owns: the draft model of a checkpoint, and what it has read of prompts that begin alike. Knows nothing of
grammars, of the large model or of how guesses are used. A draft model for speculative decoding: Leviathan et
al. 2023.

    text = model.begin(prompt_token_ids)
    for token, share in text.guesses(answer_so_far): ...
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from serving.draft_text import DraftText, read_parts
from serving.draft_weights import Array, DraftWeights
from serving.kernels.draft import create_draft_kernel
from serving.kernels.draft_base import CACHE_BLOCK, Cache, DraftKernel

_GUESSED = 1_024  # last tokens of a prompt that may be guessed: each costs half a KiB of reading a guess

Key = tuple[tuple[int, ...], ...]  # parts
_NOTHING = np.zeros(0, np.int32)


class DraftModel:
    """One draft model for many requests; belongs to one thread.

    Args:
        kernel: computes it.
        marks: tokens of a prompt behind which it is read: see `read_parts`.
        answer_tokens: that may be guessed for any prompt; others only if they are in it.
        words: how it reads a text: see `draft_words`.
        max_kept: places of first parts, in whole blocks, whose keys and values are kept.
    """

    def __init__(
        self,
        kernel: DraftKernel,
        *,
        marks: Sequence[Sequence[int]],
        answer_tokens: Sequence[int],
        words: Callable[[Sequence[int]], list[int]],
        max_kept: int = 8_192,  # 12 MiB with three layers of 128
    ) -> None:
        self._kernel = kernel
        self._marks = marks
        self._answer_tokens = frozenset(answer_tokens)
        self._words = words
        self._kept: OrderedDict[Key, Cache] = OrderedDict()  # keys and values, those used last behind
        self._num_kept, self._max_kept = 0, max_kept

    @classmethod
    def load(cls, path: Path, embedding: Array, words: Callable[[Sequence[int]], list[int]]) -> DraftModel:
        """Read a draft model, and the embedding of the checkpoint that it was made for: see `DraftWeights`.

        Raises:
            WeightsError: it is something else, or was made for an embedding of another shape.
        """
        weights = DraftWeights.load(path, embedding)
        kernel = create_draft_kernel(weights)
        tokens = np.array(weights.answer_tokens, np.int32)
        kernel.run(kernel.new_cache(), 0, weights.answer_tokens[:1], tokens)  # knows their vectors now
        return cls(kernel, marks=weights.marks, answer_tokens=weights.answer_tokens, words=words)

    def begin(self, prompt: Sequence[int]) -> DraftText | None:
        """A request's text; None where the prompt has no mark, or too much behind it."""
        size = self._kernel.vocab_size
        # A tokenizer may have more tokens than the model.
        parts = read_parts(prompt, self._marks, lambda text: [t for t in self._words(text) if t < size])
        if parts is None:
            return None
        candidates = sorted(self._answer_tokens.union(prompt[-_GUESSED:], *parts))
        *first, last = parts
        cache = self._kernel.new_cache()
        known = self._read_first(cache, first)
        return DraftText(self._kernel, cache, known, last, np.array(candidates, np.int32))

    def _read_first(self, cache: Cache, parts: list[list[int]]) -> list[int]:
        """Fill the cache with all parts but the last, from requests before this one if they had the same."""
        tokens = [token for part in parts for token in part]
        key, count = tuple(map(tuple, parts)), _in_blocks(len(tokens))
        kept = self._kept.pop(key, None)
        if kept is not None:
            cache[..., :count, :] = kept
            self._num_kept -= count
        elif tokens:
            start = 0
            for part in parts:
                self._kernel.run(cache, start, part, _NOTHING, together=True)
                start += len(part)
            kept = cache[..., :count, :].copy()
        if kept is not None:
            self._kept[key] = kept
            self._num_kept += count
            while self._num_kept > self._max_kept:
                self._num_kept -= _in_blocks(sum(map(len, self._kept.popitem(last=False)[0])))
        return tokens


def _in_blocks(count: int) -> int:
    return -(-count // CACHE_BLOCK) * CACHE_BLOCK
