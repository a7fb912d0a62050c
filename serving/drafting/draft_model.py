"""The draft model of a checkpoint: a much smaller model that guesses the next tokens from the prompt.

Draft models for speculative decoding are from Leviathan et al. 2023, "Fast Inference from Transformers via Speculative
Decoding".

    text = model.begin(prompt_token_ids)
    for token, confidence in text.guesses(answer_so_far): ...
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from serving.drafting.draft_text import DraftText, split_prompt
from serving.kernels.draft_base import CACHE_BLOCK, Cache, DraftKernel
from serving.kernels.draft_kernel import create_draft_kernel
from serving.weights.draft_weights import Array, DraftWeights

_PROMPT_CANDIDATES = 1_024  # last tokens of a prompt that may be drafted; a guess reads half a KiB for each candidate

Parts = tuple[tuple[int, ...], ...]
_NO_TOKENS = np.zeros(0, np.int32)


class DraftModel:
    """One draft model for many requests. Use it from one thread only.

    Args:
        kernel: runs the model.
        markers: token sequences after which a prompt is read: see `split_prompt`.
        answer_tokens: token ids that may be drafted for any prompt; other tokens only if they are in the prompt.
        word_tokens: turns a prompt's tokens into those that the draft model reads: see `WordTokenizer`.
        max_cached_positions: size of the prefix cache for prompts' first parts, in positions of whole blocks.
    """

    def __init__(
        self,
        kernel: DraftKernel,
        *,
        markers: Sequence[Sequence[int]],
        answer_tokens: Sequence[int],
        word_tokens: Callable[[Sequence[int]], list[int]],
        max_cached_positions: int = 8_192,  # 12 MiB for three layers of width 128
    ) -> None:
        self._kernel = kernel
        self._markers = markers
        self._answer_tokens = frozenset(answer_tokens)
        self._word_tokens = word_tokens
        self._prefixes: OrderedDict[Parts, Cache] = (
            OrderedDict()
        )  # keys and values; the most recently used entry is last
        self._num_cached, self._max_cached = 0, max_cached_positions

    @classmethod
    def load(cls, path: Path, embedding: Array, word_tokens: Callable[[Sequence[int]], list[int]]) -> DraftModel:
        """Load a draft model and choose its kernel.

        Args:
            path: of its file.
            embedding: [V, H] of its checkpoint: see `DraftWeights.load`.
            word_tokens: see `DraftModel`.

        Raises:
            WeightsError: the file is not a draft model, or belongs to an embedding of another shape.
        """
        weights = DraftWeights.load(path, embedding)
        kernel = create_draft_kernel(weights)
        tokens = np.array(weights.answer_tokens, np.int32)
        kernel.run(kernel.new_cache(), 0, weights.answer_tokens[:1], tokens)  # computes their vectors in advance
        return cls(kernel, markers=weights.markers, answer_tokens=weights.answer_tokens, word_tokens=word_tokens)

    def begin(self, prompt: Sequence[int]) -> DraftText | None:
        """Start a request; None if the prompt has no marker, or too many tokens after it."""
        size = self._kernel.vocab_size
        # A tokenizer may have more tokens than the model.
        parts = split_prompt(prompt, self._markers, lambda text: [t for t in self._word_tokens(text) if t < size])
        if parts is None:
            return None
        candidates = sorted(self._answer_tokens.union(prompt[-_PROMPT_CANDIDATES:], *parts))
        *first, last = parts
        cache = self._kernel.new_cache()
        prefix = self._fill_prefix(cache, first)
        return DraftText(self._kernel, cache, prefix, last, np.array(candidates, np.int32))

    def _fill_prefix(self, cache: Cache, parts: list[list[int]]) -> list[int]:
        """Fill the cache with a prompt's first parts; entries of an earlier request are copied if equal."""
        tokens = [token for part in parts for token in part]
        key, count = tuple(map(tuple, parts)), _whole_blocks(len(tokens))
        prefix = self._prefixes.pop(key, None)
        if prefix is not None:
            cache[..., :count, :] = prefix
            self._num_cached -= count
        elif tokens:
            start = 0
            for part in parts:
                self._kernel.run(cache, start, part, _NO_TOKENS, bidirectional=True)
                start += len(part)
            prefix = cache[..., :count, :].copy()
        if prefix is not None:
            self._prefixes[key] = prefix
            self._num_cached += count
            while self._num_cached > self._max_cached:
                self._num_cached -= _whole_blocks(sum(map(len, self._prefixes.popitem(last=False)[0])))
        return tokens


def _whole_blocks(count: int) -> int:
    return -(-count // CACHE_BLOCK) * CACHE_BLOCK
