"""What a request's next token may be, by what was seen before.

Owns: the sources of guesses and what is kept for each. Knows nothing of how far they are trusted, of grammars
or of passes. Suffix matching as a drafter is from "Prompt Lookup Decoding" (Saxena 2023) and "SuffixDecoding"
(Oliaro et al. 2024), a draft model from "Fast Inference from Transformers via Speculative Decoding"
(Leviathan et al. 2023).

    guesses = ModelGuesses(text); guesses.extend([5, 6])
    for kind, steps, found in guesses.suggestions(): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from serving.draft_text import DraftText
from serving.ngrams import START, Context, NgramTable, RecentNgrams
from serving.paged.request import Grammar
from serving.paged.trust import MODEL_STEPS, TABLE_STEPS, Source
from serving.suffix import SuffixText

_OWN_ORDERS = (1, 2, 3, 4, 6)
_RECENT_ORDERS = (2, 3, 4, 6, 8, 12)
_RECENT_CAPACITY = 60_000  # n-grams of a generation: about 150 answers, some 10 MB
_MAX_ADAPTERS = 64
_CLEAR = 230  # in 255ths: what a draft model is so sure of is written on, and checked by the grammar later

# A kind of guess, in how many steps its strength is told apart of 256, and tokens with their strengths.
Suggestion = tuple[str, int, Iterable[tuple[int, int]]]


class Guesses(Protocol):
    """Of one request. Its length is that of the answer that it has read."""

    def __len__(self) -> int: ...

    def extend(self, tokens: Sequence[int]) -> None:
        """The answer goes on with these."""
        ...

    def cut(self, length: int) -> None:
        """Back to the answer's first `length` tokens."""
        ...

    def sure_tokens(self, most: int) -> list[tuple[int, Source]]:
        """At most `most` tokens, one behind the other, that need no look at anything else; often none."""
        ...

    def suggestions(self, grammar: Grammar | None) -> Iterator[Suggestion]:
        """What may follow, by source; `grammar` may be asked what is allowed, and is left as it is."""
        ...


class ModelGuesses:
    """Those of a draft model; nothing else is asked, because it sees what the others count."""

    def __init__(self, text: DraftText) -> None:
        self._text = text
        self._answer: list[int] = []
        self._bitmask = np.zeros(-(-text.vocab_size // 32), np.int32)

    def __len__(self) -> int:
        return len(self._answer)

    def extend(self, tokens: Sequence[int]) -> None:
        """See `Guesses`."""
        self._answer += tokens

    def cut(self, length: int) -> None:
        """See `Guesses`."""
        del self._answer[length:]
        self._text.pause()

    def sure_tokens(self, most: int) -> list[tuple[int, Source]]:
        """See `Guesses`."""
        return [
            (token, ("model", share * MODEL_STEPS >> 8))
            for token, share in self._text.write(self._answer, most, _CLEAR)
        ]

    def suggestions(self, grammar: Grammar | None) -> Iterator[Suggestion]:
        """See `Guesses`."""
        found = self._text.guesses(self._answer)
        if grammar is not None and found:
            # Not sure, or refused: the likeliest that is allowed is likelier than it says.
            grammar.fill_bitmask(self._bitmask)
            found = self._text.guesses_among(self._bitmask)
        yield "model", MODEL_STEPS, found


class NgramGuesses:
    """What followed the last tokens before: in a table, in prompt and answer, in answers given lately."""

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        table: NgramTable | None,
        recent: RecentAnswers,
        adapter: str | None,
        plain: Callable[[int], int],
    ) -> None:
        self._table, self._recent, self._adapter, self._plain = table, recent, adapter, plain
        self._own = SuffixText()  # prompt and answer, leading spaces taken off
        self._own.extend(prompt, plain)
        self._num_prompt = len(prompt)
        self._written = Context((START,))  # the answer

    def __len__(self) -> int:
        return len(self._own) - self._num_prompt

    def extend(self, tokens: Sequence[int]) -> None:
        """See `Guesses`."""
        self._own.extend(tokens, self._plain)
        self._written.extend(tokens)

    def cut(self, length: int) -> None:
        """See `Guesses`."""
        self._own.cut(self._num_prompt + length)
        self._written.cut(1 + length)

    def sure_tokens(self, most: int) -> list[tuple[int, Source]]:
        """See `Guesses`."""
        return []

    def suggestions(self, grammar: Grammar | None) -> Iterator[Suggestion]:
        """See `Guesses`."""
        if self._table is not None:
            yield "table", TABLE_STEPS, self._table.successors(self._written)
        own = list(self._own.successors(_OWN_ORDERS))
        yield "own", 256, ((token, order) for token, _, order in own)
        yield "twin", 256, ((twin, order) for token, twin, order in own if twin != token)
        recent = self._recent.of(self._adapter)
        if recent is not None:
            yield "recent", 256, recent.successors(self._written)


class RecentAnswers:
    """N-grams of whole answers, by adapter; those used last are kept."""

    def __init__(self) -> None:
        self._ngrams: dict[str | None, RecentNgrams] = {}

    def of(self, adapter: str | None) -> RecentNgrams | None:
        """What this adapter answered lately."""
        return self._ngrams.get(adapter)

    def learn(self, adapter: str | None, answer: Iterable[int]) -> None:
        """A whole answer."""
        recent = self._ngrams.pop(adapter, None)
        if recent is None:
            recent = RecentNgrams(orders=_RECENT_ORDERS, capacity=_RECENT_CAPACITY)
        written = Context((START,))
        for token in answer:
            recent.learn(written, token)
            written.append(token)
        self._ngrams[adapter] = recent  # the last one is the one used last
        if len(self._ngrams) > _MAX_ADAPTERS:
            del self._ngrams[next(iter(self._ngrams))]
