"""What a draft model reads of a request, and that it reads each token once.

Owns: the parts of a prompt, and one request's reading. Knows nothing of files, of grammars or of how guesses
are used. That a prompt's tokens see each other, and an answer's only those before them, is a prefix language
model (Raffel et al. 2020, "Exploring the Limits of Transfer Learning", 3.2.1).

    text = DraftText(kernel, kernel.new_cache(), [], question, candidates)
    for token, share in text.guesses(answer_so_far): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from serving.draft_weights import MAX_TOKENS
from serving.kernels.draft_base import Cache, DraftKernel, Ints

_SEARCHED = 4_096  # tokens of a prompt's end that are searched for a mark
_ANSWER_ROOM = 192  # tokens that must be left for the answer, or a later mark is taken


def read_parts(
    prompt: Sequence[int], marks: Sequence[Sequence[int]], words: Callable[[Sequence[int]], list[int]]
) -> list[list[int]] | None:
    """The words of a prompt behind the first of `marks` that leaves room for an answer, cut at later ones.

    A part's tokens see each other and the parts before, so it is read alike whatever comes behind it. None
    where a prompt has no mark, or too much behind all of them.
    """
    searched = list(prompt[-_SEARCHED:])
    places = [find_last(searched, mark) for mark in marks]
    for i, start in enumerate(places):
        if start is None or len(searched) - start > 2 * MAX_TOKENS:  # words are hardly ever half as many
            continue
        cuts = [start, *sorted(p for p in places[i + 1 :] if p is not None and p > start), len(searched)]
        parts = [words(searched[a:b]) for a, b in pairwise(cuts)]
        room = _ANSWER_ROOM if i + 1 < len(places) else 1
        if sum(map(len, parts)) <= MAX_TOKENS - room:
            return parts
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
        self, kernel: DraftKernel, cache: Cache, known: list[int], part: list[int], candidates: Ints
    ) -> None:
        self._kernel = kernel
        self._cache = cache
        self._part = part
        self._prompt = known + part
        self._candidates = candidates
        self._read = known  # of prompt and answer
        self._found: list[tuple[int, int]] | None = None  # what follows that

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self._kernel.vocab_size

    def write(self, answer: Sequence[int], most: int, sure: int) -> list[tuple[int, int]]:
        """At most `most` (token, share in 255ths) that follow `answer` one after the other.

        None has a share below `sure`; where the next one would, or where there is no more room, this ends.
        What was written behind `answer` before was not wanted: until the next `pause` nothing is there.
        """
        tokens = [*self._prompt, *answer]
        if self._found is None or self._read[: len(tokens)] != tokens:
            return self._read_on(tokens, most, sure)
        goes_on = len(self._read) == len(tokens) and bool(self._found) and self._found[0][1] >= sure
        return self._read_on(tokens, most, sure) if goes_on else []

    def guesses(self, answer: Sequence[int]) -> list[tuple[int, int]]:
        """(token, share in 255ths) that may follow `answer`, likeliest first; none where it is too long."""
        tokens = [*self._prompt, *answer]
        if self._found is None or self._read != tokens:
            self._read_on(tokens, 0, 255)
        return self._found or []

    def guesses_among(self, allowed: Ints) -> list[tuple[int, int]]:
        """The guesses of the last call again, among tokens with a bit in `allowed` [ceil(V / 32)] only.

        No other text may have been asked since.
        """
        return _in_255ths(*self._kernel.run(self._cache, 0, (), self._candidates, allowed))

    def pause(self) -> None:
        """Other texts are asked from now on."""
        self._found = None

    def _read_on(self, tokens: list[int], most: int, sure: int) -> list[tuple[int, int]]:
        self._found = None
        if not 0 < len(tokens) <= MAX_TOKENS:
            return []
        start, together = self._start(tokens)
        written, shares, best = self._kernel.write(
            self._cache,
            start,
            tokens[start:],
            self._candidates,
            most=most,
            sure=sure / 255,
            together=together,
        )
        self._read = tokens + written
        self._found = _in_255ths(*best)
        return _in_255ths(written, shares)

    def _start(self, tokens: list[int]) -> tuple[int, bool]:
        """The first of `tokens` to be read, and whether they all are to be read together."""
        if len(self._read) < len(self._prompt):
            start = len(self._read)
            if len(tokens) == len(self._prompt):
                return start, True
            self._kernel.run(self._cache, start, self._part, self._candidates, together=True)
            self._read = self._prompt
        # The last one is read again if need be: its result is what is asked for.
        return _common_length(self._read, tokens[:-1]), False


def _in_255ths(tokens: list[int], shares: list[float]) -> list[tuple[int, int]]:
    # Not above 0 also if it is no number, after an overflow.
    return [(token, int(255 * c) if c > 0 else 0) for token, c in zip(tokens, shares, strict=True)]


def _common_length(first: list[int], second: list[int]) -> int:
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    return next(i for i in range(limit) if first[i] != second[i])
