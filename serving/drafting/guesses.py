"""The sources of guesses at a request's next tokens, and how far each of them is trusted.

The sources are n-grams and perhaps a draft model. Suffix matching as a drafter is from "Prompt Lookup Decoding" (Saxena
2023) and "SuffixDecoding" (Oliaro et al. 2024). The trust in a source is the probability that its guess is accepted,
estimated from the outcomes of its earlier guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from serving.drafting.draft_model import DraftText
from serving.drafting.drafter import Grammar
from serving.drafting.ngrams import START, Context, NgramTable, RecentNgrams, SuffixText

Source = tuple[str, int]  # name of the source of a guess, and the class of its confidence or match length
MODEL_STEPS = 20  # classes of confidence for guesses of the draft model
TABLE_STEPS = 10  # classes of confidence for guesses of the n-gram table

# Priors: acceptance rates measured on 100 answers that the model was not trained on.
_START_TRUST = {"forced": 0.99, "context": 0.2, "context_without_space": 0.1, "recent": 0.3}


class Trust:
    """Acceptance rates by source, counting only guesses whose predecessors were all accepted."""

    _PRIOR_WEIGHT = 16.0
    _MEMORY = 400.0  # older outcomes fade, so that trust adapts when the traffic changes

    def __init__(self) -> None:
        self._counts: dict[Source, tuple[float, float]] = {}  # accepted, all
        self._cache: dict[Source, float] = {}

    def probability(self, source: Source) -> float:
        """The estimated probability that a guess from this source is accepted."""
        probability = self._cache.get(source)
        if probability is None:
            accepted, total = self._counts.get(source, (0.0, 0.0))
            probability = (accepted + self._PRIOR_WEIGHT * _prior(source)) / (total + self._PRIOR_WEIGHT)
            self._cache[source] = probability
        return probability

    def add(self, source: Source, was_accepted: bool) -> None:
        """Count an outcome."""
        accepted, total = self._counts.get(source, (0.0, 0.0))
        fade = 1.0 if total < self._MEMORY else self._MEMORY / (total + 1.0)
        self._counts[source] = ((accepted + was_accepted) * fade, (total + 1.0) * fade)
        self._cache.pop(source, None)


def _prior(source: Source) -> float:
    kind, strength = source
    if kind == "table":
        return (strength + 0.5) / TABLE_STEPS
    if kind == "model":
        return (strength + 0.5) / MODEL_STEPS
    return min(0.9, _START_TRUST[kind] + 0.12 * strength)


_CONTEXT_ORDERS = (1, 2, 3, 4, 6)
_RECENT_ORDERS = (2, 3, 4, 6, 8, 12)
_RECENT_CAPACITY = 60_000  # n-grams in a generation: about 150 answers, or 10 MB
_MIN_CONFIDENCE = 230  # in 1/255: from here on the draft model generates several tokens before the grammar checks them


@dataclass(frozen=True)
class Past:
    """What earlier requests of an adapter taught: the trust in guesses, and the n-grams of complete answers."""

    trust: Trust = field(default_factory=Trust)
    recent: RecentNgrams = field(default_factory=lambda: RecentNgrams(orders=_RECENT_ORDERS, capacity=_RECENT_CAPACITY))

    def learn(self, answer: Iterable[int]) -> None:
        """Add the n-grams of a complete answer."""
        context = Context((START,))
        for token in answer:
            self.recent.learn(context, token)
            context.append(token)


# The name of a source, the number of classes into which strengths 0 … 255 fall, and tokens with their strengths.
Suggestion = tuple[str, int, Iterable[tuple[int, int]]]


class Guesses:
    """Guesses for one request: of a draft model if there is one, then of n-grams. Its length is the answer's so far.

    N-grams guess the tokens that earlier followed the same n-gram: in the table, the prompt, the answer or recent
    answers. A draft model that was trained for the task rarely needs them. One that does not fit what is asked would
    otherwise cost up to a third more passes than n-grams alone.

    Args:
        prompt: token ids.
        text: the draft model's state for this request.
        table: n-grams of typical answers.
        recent: n-grams of recent answers with the same adapter.
        without_space: maps a token to the same token without its leading space.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        text: DraftText | None,
        table: NgramTable | None,
        recent: RecentNgrams,
        without_space: Callable[[int], int],
    ) -> None:
        self._table, self._recent, self._without_space = table, recent, without_space
        self._context = SuffixText()  # prompt and answer
        self._context.extend(prompt, without_space)
        self._num_prompt = len(prompt)
        self._answer = Context((START,))
        self._text = text
        self._tokens: list[int] = []  # of the answer
        self._bitmask = np.zeros(0 if text is None else -(-text.vocab_size // 32), np.int32)

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the answer."""
        self._context.extend(tokens, self._without_space)
        self._answer.extend(tokens)
        self._tokens += tokens

    def truncate(self, length: int) -> None:
        """Keep only the answer's first `length` tokens."""
        self._context.truncate(self._num_prompt + length)
        self._answer.truncate(1 + length)
        del self._tokens[length:]
        if self._text is not None:
            self._text.invalidate()

    def confident_tokens(self, max_tokens: int) -> list[tuple[int, Source]]:
        """Up to `max_tokens` consecutive next tokens so confident that no other source is needed."""
        if self._text is None:
            return []
        generated = self._text.generate(self._tokens, max_tokens, _MIN_CONFIDENCE)
        return [(token, ("model", confidence * MODEL_STEPS >> 8)) for token, confidence in generated]

    def suggestions(self, grammar: Grammar | None) -> Iterator[Suggestion]:
        """Candidates for the next token, by source; `grammar` gives the allowed tokens and is not advanced."""
        if self._text is not None:
            guesses = self._text.guesses(self._tokens)
            if grammar is not None and guesses:
                # Among the allowed tokens only, the likeliest has a higher probability than among all.
                grammar.fill_bitmask(self._bitmask)
                guesses = self._text.allowed_guesses(self._bitmask)
            yield "model", MODEL_STEPS, guesses
        if self._table is not None:
            yield "table", TABLE_STEPS, self._table.successors(self._answer)
        matches = list(self._context.successors(_CONTEXT_ORDERS))
        yield "context", 256, ((token, order) for token, _, order in matches)
        without_space = ((normalized, order) for token, normalized, order in matches if normalized != token)
        yield "context_without_space", 256, without_space
        if len(self._recent):
            yield "recent", 256, self._recent.successors(self._answer)
