"""The drafter: proposes the likeliest next tokens, as many as are worth the cost of their rows in the next step.

Each draft comes from the first of these sources that has one:
  1. several tokens of which the draft model is confident, checked by the grammar in one call;
  2. the tokens that the grammar forces;
  3. the likeliest token among the suggestions of the draft model and of n-grams (`guesses.py`).

The number of drafts: if one more row makes a step that yields N tokens dearer by the share s (`of_one_row`), a draft
is worth its row if the probability that it is accepted is above s N: only then does the step get cheaper per token.
With a larger batch N grows, and drafts must be more probable. When fewer drafts are accepted, estimates fall, and
drafts get shorter. Rows of prompts do not count, because their cost is the same in any step.

    drafter = SpeculativeDrafter(table, model, cost=LinearCost(0.06))
    drafter.propose(request, max_tokens=16)
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from serving.drafting.draft_model import DraftModel
from serving.drafting.drafter import Drafter, DraftRequest, Grammar
from serving.drafting.guesses import Guesses, Past, Source
from serving.drafting.ngrams import NgramTable
from serving.errors import GrammarError
from serving.types import FinishReason

_MEMORY = 32.0  # steps after which a size's mean time is half forgotten, roughly
_PRIOR_WEIGHT = 1.0  # a few steps of clearly different sizes outweigh the prior
_OUTLIER = 3.0  # a step that takes longer than this multiple of the mean was interrupted
_MIN_SHARE = 0.002  # drafts take time to find, so that even rows that cost the model nothing are not free


@dataclass(frozen=True)
class LinearCost:
    """A step with R rows costs 1 + `row_cost` R."""

    row_cost: float

    def of_one_row(self, rows: float) -> float:
        """Cost of one more row in a step with `rows` rows, relative to the cost of that step."""
        return self.row_cost / (1.0 + self.row_cost * rows)


@dataclass
class _Size:
    """Mean rows and seconds of steps of similar size."""

    count: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        if self.count >= 4:
            seconds = min(seconds, _OUTLIER * self.seconds)
        self.count = min(self.count + 1.0, _MEMORY)
        self.rows += (rows - self.rows) / self.count
        self.seconds += (seconds - self.seconds) / self.count


class MeasuredCost:
    """The cost as measured so far: a line through the mean times of step sizes, of which near ones count more.

    Means of sizes that no longer occur are kept, so that the slope stays known while all steps have one size. `prior`
    is assumed until steps of different sizes were measured.
    """

    def __init__(self, prior: LinearCost) -> None:
        self._prior = prior
        self._sizes: dict[int, _Size] = {}  # by half powers of two

    def add(self, *, rows: int, seconds: float) -> None:
        """Count a step that computed `rows` rows, none of them of a prompt."""
        self._sizes.setdefault(round(2 * math.log2(rows)), _Size()).add(rows, seconds)

    def of_one_row(self, rows: float) -> float:
        """See `LinearCost`; never more than in proportion, which is 1 / `rows`."""
        rows = max(rows, 1.0)
        prior = self._prior.of_one_row(rows)
        # x: distance in rows, relative to `rows`; so the slope is the cost of `rows` more rows.
        points = [(self._weight(size, rows), size.rows / rows - 1.0, size.seconds) for size in self._sizes.values()]
        total = sum(weight for weight, _, _ in points)
        if total == 0:
            return prior
        mean_x = sum(weight * x for weight, x, _ in points) / total
        mean_y = sum(weight * y for weight, _, y in points) / total
        covariance = sum(weight * (x - mean_x) * (y - mean_y) for weight, x, y in points)
        variance = sum(weight * (x - mean_x) ** 2 for weight, x, _ in points)
        slope = (covariance + _PRIOR_WEIGHT * mean_y * prior * rows) / (variance + _PRIOR_WEIGHT)
        seconds = max(mean_y - slope * mean_x, 0.1 * mean_y)  # the time of a step with `rows` rows
        return min(max(slope / seconds / rows, _MIN_SHARE), 1.0 / rows)

    @staticmethod
    def _weight(size: _Size, rows: float) -> float:
        return float(size.count * 2.0 ** -abs(math.log2(size.rows / rows)))


StepCost = LinearCost | MeasuredCost

# One of so many steps has more drafts than seem worth it. Otherwise neither what larger steps cost nor how often less
# probable guesses are right would ever be measured again where they were thought too dear.
_STEPS_BETWEEN_TRIALS = 32
_FORCED: Source = ("forced", 0)
_CONFIDENT = 0.95  # a guess that is trusted more is taken without looking at other sources
_DOUBTFUL = 0.5  # and one that the draft model is confident of, from here on
_MAX_ADAPTERS = 64  # whose past is kept


@dataclass
class _DraftState:
    """The drafter's state for one request."""

    guesses: Guesses
    past: Past
    proposed: list[Source] = field(default_factory=list)  # the sources of the last drafts


class SpeculativeDrafter(Drafter):
    """Drafts from the grammar, from n-grams or from a draft model.

    Args:
        table: n-grams of typical answers, if the weights include them.
        model: the draft model, if the weights include one. It was trained for the base checkpoint; requests with an
            adapter use the adapter's, or without one n-grams.
        cost: the cost of one more row in a step.
        without_space: maps a token to the same token without its leading space, so that a word in running text matches
            the same word in quotes.
    """

    def __init__(
        self,
        table: NgramTable | None,
        model: DraftModel | None = None,
        *,
        cost: StepCost,
        without_space: Callable[[int], int] = lambda token: token,
    ) -> None:
        self._table = table
        self._model = model
        self._cost = cost
        self._without_space = without_space
        self._pasts: OrderedDict[str | None, Past] = OrderedDict()  # by adapter, as each writes other answers
        self._states: dict[str, _DraftState] = {}
        self._mean_tokens = 3.0  # tokens per request and step: a moving average
        self._mean_drafts = 6.0  # drafts per request and step: a moving average
        self._min_probability = 0.0
        self._num_steps = 0

    def begin_step(self, num_requests: int) -> None:
        """Set the probability that a draft needs in a step with drafts for `num_requests` requests."""
        rows = num_requests * (1 + self._mean_drafts)
        tokens = num_requests * self._mean_tokens
        self._min_probability = self._cost.of_one_row(rows) * tokens
        self._num_steps += 1
        if self._num_steps % _STEPS_BETWEEN_TRIALS == 0:
            self._min_probability /= 2

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
                probability *= state.past.trust.probability(source)
            drafts += tokens
            state.proposed += sources
            state.guesses.extend(tokens)
        return drafts

    def observe(self, request: DraftRequest, *, num_drafts: int, num_accepted: int) -> None:
        """Update the trust in the sources of a request's last drafts."""
        state = self._states[request.request_id]
        proposed = state.proposed[:num_drafts]
        for source in proposed[:num_accepted]:
            state.past.trust.add(source, True)
        if num_accepted < len(proposed):
            state.past.trust.add(proposed[num_accepted], False)
        self._mean_tokens += 0.02 * (num_accepted + 1 - self._mean_tokens)
        self._mean_drafts += 0.02 * (num_drafts - self._mean_drafts)

    def sources(self, request: DraftRequest, num_tokens: int) -> tuple[str, ...]:
        """See `Drafter.sources`."""
        state = self._states.get(request.request_id)
        return () if state is None else tuple(name for name, _ in state.proposed[:num_tokens])

    def finish(self, request: DraftRequest) -> None:
        """Drop a request's state; if it had drafts and its answer is complete, learn the answer's n-grams."""
        state = self._states.pop(request.request_id, None)
        if state is not None and request.finish_reason is FinishReason.STOP:
            state.past.learn(request.output_token_ids)

    def _update_state(self, request: DraftRequest) -> _DraftState:
        state = self._states.get(request.request_id)
        if state is None:
            past = self._past(request.adapter)
            state = _DraftState(self._begin(request, past), past)
            self._states[request.request_id] = state
        state.guesses.extend(request.output_token_ids[len(state.guesses) :])
        return state

    def _past(self, adapter: str | None) -> Past:
        """The past of an adapter, None being the base; the least recently used one is dropped."""
        past = self._pasts.setdefault(adapter, Past())
        self._pasts.move_to_end(adapter)
        if len(self._pasts) > _MAX_ADAPTERS:
            self._pasts.popitem(last=False)
        return past

    def _begin(self, request: DraftRequest, past: Past) -> Guesses:
        prompt = request.token_ids[: request.num_prompt_tokens]
        model = self._model if request.adapter is None else request.draft_model
        text = None if model is None else model.begin(prompt)
        return Guesses(
            prompt,
            text=text,
            table=self._table if text is None else None,  # a draft model knows typical answers better
            recent=past.recent,
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
        """The confident tokens that are worth their rows, up to one of which other sources may know more."""
        run = state.guesses.confident_tokens(room)
        for i, (_, source) in enumerate(run):
            trust = state.past.trust.probability(source)
            probability *= trust
            if trust < _DOUBTFUL or probability < self._min_probability:
                return run[:i]
        return run


def _ranked(state: _DraftState, grammar: Grammar | None) -> Iterator[tuple[float, int, Source]]:
    """(trust, token, source), likeliest first; confident guesses come before further sources are asked."""
    best: dict[int, tuple[float, Source]] = {}
    trusts = state.past.trust
    for kind, steps, suggestions in state.guesses.suggestions(grammar):
        for token, strength in suggestions:
            source = (kind, strength * steps >> 8)
            trust = trusts.probability(source)
            if trust > _CONFIDENT:
                yield trust, token, source
            elif token not in best or trust > best[token][0]:
                best[token] = (trust, source)
    yield from sorted(((trust, token, source) for token, (trust, source) in best.items()), reverse=True)


def _may_follow(grammar: Grammar | None, token: int) -> bool:
    return grammar is None or grammar.accept([token]) == 1
