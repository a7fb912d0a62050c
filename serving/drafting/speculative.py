"""The drafter: proposes the likeliest next tokens, as many as are worth the cost of their rows in the next step.

Each draft comes from the first of these sources that has one:
  1. several tokens of which the draft model is confident, checked by the grammar in one call;
  2. the tokens that the grammar forces;
  3. the likeliest token among the suggestions of the draft model, or without one of trained heads and of n-grams
     (`guesses.py`).

The number of drafts: if one more row makes a step that yields N tokens dearer by the share s (`step_cost.py`), a draft
is worth its row if the probability that it is accepted is above s N: only then does the step get cheaper per token.
With a larger batch N grows, and drafts must be more probable. When fewer drafts are accepted, estimates fall, and
drafts get shorter. Rows of prompts do not count, because their cost is the same in any step.

    drafter = SpeculativeDrafter(table, model, cost=LinearCost(0.06))
    drafter.propose(request, max_tokens=16)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from serving.drafting.draft_model import DraftModel
from serving.drafting.drafter import DraftRequest, Grammar
from serving.drafting.guesses import Guesses, HeadGuesses, ModelGuesses, NgramGuesses, RecentAnswers
from serving.drafting.ngrams import NgramTable
from serving.drafting.step_cost import StepCost
from serving.drafting.trust import Source, Trust, TrustByAdapter
from serving.errors import GrammarError
from serving.types import FinishReason

_FORCED: Source = ("forced", 0)
_CONFIDENT = 0.95  # a guess that is trusted more is taken without looking at other sources


@dataclass
class _DraftState:
    """The drafter's state for one request."""

    guesses: Guesses
    trust: Trust
    proposed: list[Source] = field(default_factory=list)  # the sources of the last drafts


class SpeculativeDrafter:
    """Drafts from the grammar, from n-grams or from a draft model.

    Args:
        table: n-grams of typical answers, if the weights include them.
        model: the draft model, if the weights include one. It was trained for the base checkpoint.
        adapter_models: draft models that were trained for adapters; requests of other adapters use n-grams,
            and heads if they have any.
        cost: of one more row in a step.
        without_space: maps a token to the same token without its leading space, so that a word in running text matches
            the same word in quotes.
    """

    def __init__(
        self,
        table: NgramTable | None,
        model: DraftModel | None = None,
        *,
        adapter_models: Mapping[str, DraftModel] | None = None,
        cost: StepCost,
        without_space: Callable[[int], int] = lambda token: token,
    ) -> None:
        self._table = table
        self._model = model
        self._adapter_models = adapter_models or {}
        self._cost = cost
        self._without_space = without_space
        self._trusts = TrustByAdapter()
        self._states: dict[str, _DraftState] = {}
        self._recent = RecentAnswers()
        self._mean_tokens = 3.0  # tokens per request and step: a moving average
        self._mean_drafts = 6.0  # drafts per request and step: a moving average
        self._min_probability = 0.0

    def begin_step(self, num_requests: int) -> None:
        """Set the probability that a draft needs in a step with drafts for `num_requests` requests."""
        rows = num_requests * (1 + self._mean_drafts)
        tokens = num_requests * self._mean_tokens
        self._min_probability = self._cost.of_one_row(rows) * tokens

    def propose(self, request: DraftRequest, max_tokens: int) -> list[int]:
        """At most `max_tokens` tokens, each probable enough to be worth its row."""
        state = self._update_state(request)
        num_answer_tokens = len(state.guesses)
        state.proposed = []
        try:
            drafts = self._extend(request, state, max_tokens)
            if request.grammar is not None and drafts:
                request.grammar.rollback(len(drafts))
        except GrammarError:  # the grammar has failed for good, and the sampler will get the same error
            drafts = []
        state.guesses.truncate(num_answer_tokens)
        return drafts

    def _extend(self, request: DraftRequest, state: _DraftState, max_tokens: int) -> list[int]:
        drafts: list[int] = []
        probability = 1.0
        while len(drafts) < max_tokens:
            # After forced tokens the grammar allows a choice: no need to ask it for forced tokens again.
            is_choice = bool(state.proposed) and state.proposed[-1] is _FORCED
            room = max_tokens - len(drafts)
            next_drafts = self._next(request, state, room, probability, is_choice)
            if not next_drafts:
                break
            tokens = [token for token, _ in next_drafts]
            sources = [source for _, source in next_drafts]
            for source in sources:
                probability *= state.trust.probability(source)
            drafts += tokens
            state.proposed += sources
            state.guesses.extend(tokens)
        return drafts

    def observe(self, request: DraftRequest, *, num_drafts: int, num_accepted: int) -> None:
        """Update the trust in the sources of a request's last drafts."""
        state = self._states[request.request_id]
        proposed = state.proposed[:num_drafts]
        for source in proposed[:num_accepted]:
            state.trust.add(source, True)
        if num_accepted < len(proposed):
            state.trust.add(proposed[num_accepted], False)
        self._mean_tokens += 0.02 * (num_accepted + 1 - self._mean_tokens)
        self._mean_drafts += 0.02 * (num_drafts - self._mean_drafts)

    def sources(self, request: DraftRequest, num_tokens: int) -> tuple[str, ...]:
        """See `Drafter.sources`."""
        state = self._states.get(request.request_id)
        return () if state is None else tuple(name for name, _ in state.proposed[:num_tokens])

    def finish(self, request: DraftRequest) -> None:
        """Drop a request's state; if it used n-grams and its answer is complete, learn the answer's n-grams."""
        state = self._states.pop(request.request_id, None)
        uses_ngrams = state is not None and isinstance(state.guesses, NgramGuesses)
        if uses_ngrams and request.finish_reason is FinishReason.STOP:
            self._recent.learn(request.adapter, request.output_token_ids)

    def _update_state(self, request: DraftRequest) -> _DraftState:
        state = self._states.get(request.request_id)
        if state is None:
            state = _DraftState(self._begin(request), self._trusts.of(request.adapter))
            self._states[request.request_id] = state
        state.guesses.extend(request.output_token_ids[len(state.guesses) :])
        return state

    def _begin(self, request: DraftRequest) -> Guesses:
        prompt = request.token_ids[: request.num_prompt_tokens]
        adapter = request.adapter
        model = self._model if adapter is None else self._adapter_models.get(adapter)
        if model is not None:
            text = model.begin(prompt)
            if text is not None:
                return ModelGuesses(text)
        make = NgramGuesses if request.heads is None else partial(HeadGuesses, request.heads)
        return make(
            prompt,
            table=self._table,
            recent=self._recent,
            adapter=request.adapter,
            without_space=self._without_space,
        )

    def _next(
        self, request: DraftRequest, state: _DraftState, room: int, probability: float, is_choice: bool
    ) -> list[tuple[int, Source]]:
        """The next drafts and their sources; none if nothing is probable enough. Advances the grammar."""
        grammar = request.grammar
        if grammar is not None and grammar.is_complete:
            return []
        run = self._worthwhile(state, room, probability)
        if run and grammar is not None:
            run = run[: grammar.accept([token for token, _ in run])]
        if run:
            return run
        if grammar is not None and not is_choice:
            forced = grammar.forced_tokens()[:room]
            if forced:
                return [(token, _FORCED) for token in forced[: grammar.accept(forced)]]
        for trust, token, source in _ranked(state, grammar):
            if probability * trust < self._min_probability:
                break
            if _may_follow(grammar, token):
                return [(token, source)]
        return []

    def _worthwhile(self, state: _DraftState, room: int, probability: float) -> list[tuple[int, Source]]:
        """The confident tokens that are worth their rows."""
        run = state.guesses.confident_tokens(room)
        for i, (_, source) in enumerate(run):
            probability *= state.trust.probability(source)
            if probability < self._min_probability:
                return run[:i]
        return run


def _ranked(state: _DraftState, grammar: Grammar | None) -> Iterator[tuple[float, int, Source]]:
    """(trust, token, source), likeliest first; confident guesses come before further sources are asked."""
    best: dict[int, tuple[float, Source]] = {}
    for kind, steps, suggestions in state.guesses.suggestions(grammar):
        for token, strength in suggestions:
            source = (kind, strength * steps >> 8)
            trust = state.trust.probability(source)
            if trust > _CONFIDENT:
                yield trust, token, source
            elif token not in best or trust > best[token][0]:
                best[token] = (trust, source)
    yield from sorted(((trust, token, source) for token, (trust, source) in best.items()), reverse=True)


def _may_follow(grammar: Grammar | None, token: int) -> bool:
    return grammar is None or grammar.accept([token]) == 1
