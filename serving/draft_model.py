"""What would the model answer? Guesses of a much smaller one that reads the question.

Owns: what a draft model reads of a request, and that it reads each token once. Knows nothing of grammars, of
the large model or of how guesses are used. A draft model for speculative decoding: Leviathan et al. 2023.

    text = model.begin(prompt_token_ids)
    for token, share in text.guesses(answer_so_far): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from serving.draft_weights import MAX_TOKENS, Array, DraftWeights
from serving.kernels.draft import create_draft_kernel
from serving.kernels.draft_base import DraftKernel, Ints

_SEARCHED = 4_096  # tokens of a prompt's end that are searched for a mark
_GUESSED = 1_024  # of these may be guessed: each costs half a KiB of reading a guess


class DraftModel:
    """One draft model for many requests; belongs to one thread.

    Args:
        kernel: computes it.
        mark: tokens of a prompt behind which it is read.
        answer_tokens: that may be guessed for any prompt; others only if they are in it.
        plain: the id of the same token without its leading space.
    """

    def __init__(
        self,
        kernel: DraftKernel,
        *,
        mark: Sequence[int],
        answer_tokens: Sequence[int],
        plain: Callable[[int], int],
    ) -> None:
        self._kernel = kernel
        self._mark = mark
        self._answer_tokens = frozenset(answer_tokens)
        self._plain = plain

    @classmethod
    def load(cls, path: Path, embedding: Array, plain: Callable[[int], int]) -> DraftModel:
        """Read a draft model, and the embedding of the checkpoint that it was made for: see `DraftWeights`.

        Raises:
            WeightsError: it is something else, or was made for an embedding of another shape.
        """
        weights = DraftWeights.load(path, embedding)
        kernel = create_draft_kernel(weights)
        tokens = np.array(weights.answer_tokens, np.int32)
        kernel.run(kernel.new_cache(), 0, weights.answer_tokens[:1], tokens)  # knows their vectors now
        return cls(kernel, mark=weights.mark, answer_tokens=weights.answer_tokens, plain=plain)

    def begin(self, prompt: Sequence[int]) -> DraftText | None:
        """A request's text; None where the prompt has no mark, or too much behind it."""
        searched = prompt[-_SEARCHED:]
        start = find_last(searched, self._mark)
        if start is None or len(searched) - start >= MAX_TOKENS:
            return None
        # A tokenizer may have more tokens than the model: those without a leading space too.
        vocab_size = self._kernel.vocab_size
        plain = [p if (p := self._plain(token)) < vocab_size else token for token in searched]
        guessed = slice(-_GUESSED, None)
        candidates = sorted(self._answer_tokens.union(searched[guessed], plain[guessed]))
        return DraftText(self._kernel, plain[start:], np.array(candidates, np.int32))


class DraftText:
    """One request, as far as the draft model has read it.

    Args:
        kernel: computes.
        question: what is read before the answer; may be empty.
        candidates: tokens to choose from, ascending.
    """

    def __init__(self, kernel: DraftKernel, question: list[int], candidates: Ints) -> None:
        self._kernel = kernel
        self._question = question
        self._candidates = candidates
        self._cache = kernel.new_cache()
        self._read: list[int] = []  # question and answer

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self._kernel.vocab_size

    def guesses(self, answer: Sequence[int]) -> list[tuple[int, int]]:
        """(token, share in 255ths) that may follow `answer`, likeliest first; none where it is too long."""
        tokens = [*self._question, *answer]
        if not 0 < len(tokens) <= MAX_TOKENS:
            return []
        # The last one is read again if need be: its result is what is asked for.
        same = _common_length(self._read, tokens[:-1])
        best, chances = self._kernel.run(self._cache, same, tokens[same:], self._candidates)
        self._read = tokens
        return _in_255ths(best, chances)

    def guesses_among(self, allowed: Ints) -> list[tuple[int, int]]:
        """The guesses of the last call again, among tokens with a bit in `allowed` [ceil(V / 32)] only.

        No other text may have been asked since.
        """
        best, chances = self._kernel.run(self._cache, 0, (), self._candidates, allowed)
        return _in_255ths(best, chances)


def find_last(tokens: Sequence[int], mark: Sequence[int]) -> int | None:
    """The place behind the last `mark` in `tokens`."""
    found = "".join(map(chr, tokens)).rfind("".join(map(chr, mark)))
    return None if found < 0 else found + len(mark)


def _common_length(first: list[int], second: list[int]) -> int:
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    return next(i for i in range(limit) if first[i] != second[i])


def _in_255ths(tokens: list[int], chances: list[float]) -> list[tuple[int, int]]:
    # Not above 0 also if it is no number, after an overflow.
    return [(token, int(255 * c) if c > 0 else 0) for token, c in zip(tokens, chances, strict=True)]
