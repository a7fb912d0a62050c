"""Run a draft model on the text of one request, so that it reads each token only once.

The tokens of a part of the prompt all see each other, those of the answer only the ones before: a prefix language model
(Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 3.2.1).

    text = DraftText(kernel, kernel.new_cache(), [], question, candidates)
    for token, confidence in text.guesses(answer_so_far): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from serving.kernels.draft_base import Cache, DraftKernel, Ints
from serving.weights.draft_weights import MAX_TOKENS

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
