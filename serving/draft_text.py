"""What a draft model reads of a request, and that it reads each token once.

Owns: the parts of a prompt, and one request's reading. Knows nothing of files, of grammars or of how guesses
are used. That a prompt's tokens see each other, and an answer's only those before them, is a prefix language
model (Raffel et al. 2020, "Exploring the Limits of Transfer Learning", 3.2.1).

    text = DraftText(kernel, kernel.new_cache(), [], question, candidates)
    for token, share in text.guesses(answer_so_far): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from serving.draft_weights import MAX_TOKENS
from serving.kernels.draft_base import DraftKernel, Floats, Ints

_SEARCHED = 4_096  # tokens of a prompt's end that are searched for a mark
_ANSWER_ROOM = 192  # tokens that must be left for the answer, or a later mark is taken


def read_parts(prompt: Sequence[int], marks: Sequence[Sequence[int]]) -> list[list[int]] | None:
    """The end of a prompt behind the first of `marks` that leaves room for an answer, cut at the later ones.

    A part's tokens see each other and the parts before, so it is read alike whatever comes behind it. None
    where a prompt has no mark, or too much behind all of them.
    """
    searched = list(prompt[-_SEARCHED:])
    places = [find_last(searched, mark) for mark in marks]
    for i, start in enumerate(places):
        room = _ANSWER_ROOM if i + 1 < len(places) else 1
        if start is None or len(searched) - start > MAX_TOKENS - room:
            continue
        cuts = [start, *sorted(p for p in places[i + 1 :] if p is not None and p > start), len(searched)]
        return [searched[a:b] for a, b in pairwise(cuts)]
    return None


def find_last(tokens: Sequence[int], mark: Sequence[int]) -> int | None:
    """The place behind the last `mark` in `tokens`."""
    found = "".join(map(chr, tokens)).rfind("".join(map(chr, mark)))
    return None if found < 0 else found + len(mark)


class DraftText:
    """One request, as far as the draft model has read it.

    Args:
        kernel: computes.
        cache: keys and values of `known`.
        known: the first tokens of the prompt, whole parts of it.
        part: its last part; may be empty.
        candidates: tokens to choose from, ascending.
    """

    def __init__(
        self, kernel: DraftKernel, cache: Floats, known: list[int], part: list[int], candidates: Ints
    ) -> None:
        self._kernel = kernel
        self._cache = cache
        self._part = part
        self._prompt = known + part
        self._candidates = candidates
        self._read = known  # of prompt and answer

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self._kernel.vocab_size

    def guesses(self, answer: Sequence[int]) -> list[tuple[int, int]]:
        """(token, share in 255ths) that may follow `answer`, likeliest first; none where it is too long."""
        tokens = [*self._prompt, *answer]
        if not 0 < len(tokens) <= MAX_TOKENS:
            return []
        if len(self._read) < len(self._prompt):
            found = self._run(len(self._read), self._part, together=True)
            self._read = self._prompt
            if not answer:
                return found
        # The last one is read again if need be: its result is what is asked for.
        same = _common_length(self._read, tokens[:-1])
        self._read = tokens
        return self._run(same, tokens[same:])

    def guesses_among(self, allowed: Ints) -> list[tuple[int, int]]:
        """The guesses of the last call again, among tokens with a bit in `allowed` [ceil(V / 32)] only.

        No other text may have been asked since.
        """
        return self._run(0, (), allowed)

    def _run(
        self, start: int, ids: Sequence[int], allowed: Ints | None = None, *, together: bool = False
    ) -> list[tuple[int, int]]:
        best, chances = self._kernel.run(
            self._cache, start, ids, self._candidates, allowed, together=together
        )
        # Not above 0 also if it is no number, after an overflow.
        return [(token, int(255 * c) if c > 0 else 0) for token, c in zip(best, chances, strict=True)]


def _common_length(first: list[int], second: list[int]) -> int:
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    return next(i for i in range(limit) if first[i] != second[i])
