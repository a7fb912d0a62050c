"""The draft model of a checkpoint: a much smaller model that guesses the next tokens from the prompt.

Draft models for speculative decoding are from Leviathan et al. 2023, "Fast Inference from Transformers via Speculative
Decoding". It is a prefix language model (Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section
3.2.1): the tokens of a part of the prompt all see each other, those of the answer only the ones before.

    text = model.begin(prompt_token_ids)
    for token, confidence in text.guesses(answer_so_far): ...
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from serving.kernels.build import build_library
from serving.kernels.draft_base import CACHE_BLOCK, Cache, DraftKernel, Ints
from serving.kernels.draft_cpp import CppDraft
from serving.kernels.draft_numpy import NumpyDraft
from serving.text import Tokenizer
from serving.weights.draft_weights import MAX_TOKENS, Array, DraftWeights


def create_draft_kernel(weights: DraftWeights) -> DraftKernel:
    """The C++ kernel, or numpy if it cannot be compiled."""
    path = build_library()
    return NumpyDraft(weights) if path is None else CppDraft(weights, path)


_CACHED_WORDS, _CACHED_LENGTH = 16_384, 64  # words of up to 64 characters: a few MB
# Text in single quotes is one word, including its spaces; text between two apostrophes is not.
_WORDS = re.compile(r"(?<!\w)'([^']*)'(?!\w)|([^\s'\"]+)")


class WordTokenizer:
    """Maps the tokens of a text to the tokens of its words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encode_cached = lru_cache(_CACHED_WORDS)(self._encode)

    def __call__(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens of the words of a text, each without a leading space; quotes and white space are left out."""
        words = [quoted or word for quoted, word in _WORDS.findall(self._tokenizer.decode(token_ids))]
        encoded = [self._encode_cached(word) if len(word) <= _CACHED_LENGTH else self._encode(word) for word in words]
        return [token for tokens in encoded for token in tokens]

    def _encode(self, word: str) -> list[int]:
        return self._tokenizer.encode(word, add_bos=False)


_MAX_DISTANCE = 4_096  # tokens at the end of a prompt that are searched for markers
_ANSWER_ROOM = 192  # tokens that must be left for the answer; otherwise a later marker is used


def split_prompt(
    prompt: Sequence[int], markers: Sequence[Sequence[int]], word_tokens: Callable[[Sequence[int]], list[int]]
) -> list[list[int]] | None:
    """Split the end of a prompt, which the draft model reads, at markers; each part is tokenized by `word_tokens`.

    It starts after the first marker that leaves room for an answer. A part's tokens see each other and earlier parts,
    so its keys and values do not depend on later parts. None if the prompt has no marker or is too long after each.
    """
    tail = list(prompt[-_MAX_DISTANCE:])
    positions = [find_last(tail, marker) for marker in markers]
    for i, start in enumerate(positions):
        # Words rarely have less than half as many tokens as the text: no need to tokenize longer ones.
        if start is None or len(tail) - start > 2 * MAX_TOKENS:
            continue
        cuts = [start, *sorted(p for p in positions[i + 1 :] if p is not None and p > start), len(tail)]
        parts = [word_tokens(tail[a:b]) for a, b in pairwise(cuts)]
        room = _ANSWER_ROOM if i + 1 < len(positions) else 1
        if sum(map(len, parts)) <= MAX_TOKENS - room:
            return parts
    return None


def find_last(tokens: Sequence[int], marker: Sequence[int]) -> int | None:
    """The position after the last occurrence of `marker` in `tokens`."""
    start = "".join(map(chr, tokens)).rfind("".join(map(chr, marker)))
    return None if start < 0 else start + len(marker)


class DraftText:
    """The state of a draft model for one request.

    Confidences are probabilities among the candidates, in 1/255.

    Args:
        kernel: runs the model.
        cache: keys and values of `prefix`.
        prefix: the first parts of the prompt.
        last_part: the last part of the prompt; may be empty.
        candidates: token ids to choose from, ascending.
    """

    def __init__(
        self, kernel: DraftKernel, cache: Cache, prefix: list[int], last_part: list[int], candidates: Ints
    ) -> None:
        self._kernel = kernel
        self._cache = cache
        self._last_part = last_part
        self._prompt = prefix + last_part
        self._candidates = candidates
        self._cached = prefix  # tokens of prompt and answer whose keys and values are in the cache
        self._guesses: list[tuple[int, int]] | None = None  # that follow the cached tokens

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._kernel.vocab_size

    def generate(self, answer: Sequence[int], max_tokens: int, min_confidence: int) -> list[tuple[int, int]]:
        """Greedily generate up to `max_tokens` (token, confidence) pairs while confidence is `min_confidence` or more.

        Returns nothing if an earlier call has already generated tokens after `answer`, because the caller did not use
        them; `invalidate` resets this.
        """
        tokens = [*self._prompt, *answer]
        if self._guesses is None or self._cached[: len(tokens)] != tokens:
            return self._extend(tokens, max_tokens, min_confidence)
        at_end = len(self._cached) == len(tokens)
        is_confident = bool(self._guesses) and self._guesses[0][1] >= min_confidence
        return self._extend(tokens, max_tokens, min_confidence) if at_end and is_confident else []

    def guesses(self, answer: Sequence[int]) -> list[tuple[int, int]]:
        """(token, confidence) of the likeliest tokens after `answer`, likeliest first; none if it is too long."""
        tokens = [*self._prompt, *answer]
        if self._guesses is None or self._cached != tokens:
            self._extend(tokens, 0, 255)
        return self._guesses or []

    def allowed_guesses(self, bitmask: Ints) -> list[tuple[int, int]]:
        """The result of the last call of `guesses`, but only among tokens with a bit in `bitmask` [ceil(V / 32)].

        The kernel must not have run for another request since.
        """
        return _with_confidence(*self._kernel.run(self._cache, 0, (), self._candidates, bitmask))

    def invalidate(self) -> None:
        """Forget the last result, because the kernel is about to run for other requests."""
        self._guesses = None

    def _extend(self, tokens: list[int], max_tokens: int, min_confidence: int) -> list[tuple[int, int]]:
        self._guesses = None
        if not 0 < len(tokens) <= MAX_TOKENS:
            return []
        start, bidirectional = self._start(tokens)
        generated, probabilities, top = self._kernel.generate(
            self._cache,
            start,
            tokens[start:],
            self._candidates,
            max_tokens=max_tokens,
            min_confidence=min_confidence / 255,
            bidirectional=bidirectional,
        )
        self._cached = tokens + generated
        self._guesses = _with_confidence(*top)
        return _with_confidence(generated, probabilities)

    def _start(self, tokens: list[int]) -> tuple[int, bool]:
        """The index of the first of `tokens` to run, and whether they are the prompt's last part."""
        if len(self._cached) < len(self._prompt):
            start = len(self._cached)
            if len(tokens) == len(self._prompt):
                return start, True
            self._kernel.run(self._cache, start, self._last_part, self._candidates, bidirectional=True)
            self._cached = self._prompt
        # At least the last token is run, even if it is cached: its output gives the guesses.
        return _common_length(self._cached, tokens[:-1]), False


def _with_confidence(tokens: list[int], probabilities: list[float]) -> list[tuple[int, int]]:
    # NaN, after an overflow, is not above 0 and becomes 0.
    return [(token, int(255 * p) if p > 0 else 0) for token, p in zip(tokens, probabilities, strict=True)]


def _common_length(first: list[int], second: list[int]) -> int:
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    return next(i for i in range(limit) if first[i] != second[i])


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
            path: the path of its file.
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

    @property
    def nbytes(self) -> int:
        """The memory that the draft model takes with a full prefix cache, in bytes, about."""
        return self._kernel.nbytes + self._max_cached * (self._kernel.new_cache().nbytes // MAX_TOKENS)

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
