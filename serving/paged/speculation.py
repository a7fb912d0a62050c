"""The drafter: what will the model most likely write, and is it worth a row of the next pass?

Owns: which guess is taken, how far its kind is trusted, and how many are worth their rows. Knows nothing of
the model or of the task. Where a draft model came with the weights, what it is sure of comes first, several
tokens at a time, which the grammar checks in one call. Otherwise what the grammar forces; then what the draft
model suggests among what is allowed, or whichever n-gram has proved right most often (`guesses.py`). The
trust that is learned per source, and the rule for how many, are this package's.

How many drafts: a row of a pass costs `row_cost` (in units of a pass's fixed cost), and a pass with
R rows that is to yield N tokens therefore (1 + row_cost R) / N a token. A draft is worth its row if
its chance to be accepted is above row_cost N / (1 + row_cost R). As the batch grows N grows with it,
and drafts must be surer; as acceptance falls, so do the chances, and drafts end sooner. Rows of prompts
do not count: they cost the same in whatever pass, so a token is worth no more in a pass that has many.

    drafter = SpeculativeDrafter(table, model, row_cost=0.06)
    drafter.propose(request, max_tokens=16)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from serving.draft_model import DraftModel
from serving.errors import GrammarError
from serving.ngrams import NgramTable
from serving.paged.guesses import Guesses, ModelGuesses, NgramGuesses, RecentAnswers
from serving.paged.request import Grammar, Request
from serving.paged.trust import Source, Trust
from serving.types import FinishReason

_FORCED: Source = ("forced", 0)
_SURE = 0.95  # what is trusted more is not compared with anything


@dataclass
class _Follower:
    """What the drafter remembers of one request."""

    guesses: Guesses
    proposed: list[Source] = field(default_factory=list)


class SpeculativeDrafter:
    """Drafts from the grammar, from n-grams or from a draft model; see the module's text.

    Args:
        table: n-grams of answers that ship with the weights; None without.
        model: likewise; it was trained for the checkpoint as it is, so requests with an adapter get n-grams.
        row_cost: cost of one more row in a pass, as a share of the pass's fixed cost.
        plain: the id of the same token without its leading space, so that a word in running text
            matches the same word in quotes.
    """

    def __init__(
        self,
        table: NgramTable | None,
        model: DraftModel | None = None,
        *,
        row_cost: float,
        plain: Callable[[int], int] = lambda token: token,
    ) -> None:
        self._table = table
        self._model = model
        self._row_cost = row_cost
        self._plain = plain
        self._trust = Trust()
        self._followers: dict[str, _Follower] = {}
        self._recent = RecentAnswers()
        self._yield = 3.0  # tokens that a request gets from a pass, lately
        self._drafts = 6.0  # drafts that a request has in a pass, lately
        self._least_chance = 0.0

    def begin_step(self, num_requests: int) -> None:
        """Settle what a draft must promise in a pass with drafts of so many requests."""
        rows = num_requests * (1 + self._drafts)
        tokens = num_requests * self._yield
        self._least_chance = self._row_cost * tokens / (1.0 + self._row_cost * rows)

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        """At most `max_tokens` tokens, each likely enough to be worth its row."""
        follower = self._follow(request)
        known = len(follower.guesses)
        follower.proposed = []
        try:
            drafts = self._extend(request, follower, max_tokens)
            if request.grammar is not None and drafts:
                request.grammar.rollback(len(drafts))
        except GrammarError:  # it gave up for good, and will tell the sampler so again
            drafts = []
        follower.guesses.cut(known)
        return drafts

    def _extend(self, request: Request, follower: _Follower, max_tokens: int) -> list[int]:
        drafts: list[int] = []
        chance = 1.0
        while len(drafts) < max_tokens:
            # After what was forced there is a choice: no need to ask the grammar again.
            is_choice = bool(follower.proposed) and follower.proposed[-1] is _FORCED
            room = max_tokens - len(drafts)
            found = self._next(request, follower.guesses, room, chance, is_choice)
            if not found:
                break
            tokens = [token for token, _ in found]
            sources = [source for _, source in found]
            for source in sources:
                chance *= self._trust.of(source)
            drafts += tokens
            follower.proposed += sources
            follower.guesses.extend(tokens)
        return drafts

    def observe(self, request: Request, *, num_drafts: int, num_accepted: int) -> None:
        """Learn how many of the last drafts of a request were right."""
        proposed = self._followers[request.request_id].proposed[:num_drafts]
        for source in proposed[:num_accepted]:
            self._trust.add(source, True)
        if num_accepted < len(proposed):
            self._trust.add(proposed[num_accepted], False)
        self._yield += 0.02 * (num_accepted + 1 - self._yield)
        self._drafts += 0.02 * (num_drafts - self._drafts)

    def finish(self, request: Request) -> None:
        """Forget the request; learn the n-grams of its answer if they are asked, and half of none."""
        follower = self._followers.pop(request.request_id, None)
        asked = follower is not None and isinstance(follower.guesses, NgramGuesses)
        if asked and request.finish_reason is FinishReason.STOP:
            self._recent.learn(request.adapter, request.output_token_ids)

    def _follow(self, request: Request) -> _Follower:
        follower = self._followers.get(request.request_id)
        if follower is None:
            follower = self._followers[request.request_id] = _Follower(self._begin(request))
        follower.guesses.extend(request.output_token_ids[len(follower.guesses) :])
        return follower

    def _begin(self, request: Request) -> Guesses:
        prompt = request.token_ids[: request.num_prompt_tokens]
        if self._model is not None and request.adapter is None:
            text = self._model.begin(prompt)
            if text is not None:
                return ModelGuesses(text)
        return NgramGuesses(
            prompt, table=self._table, recent=self._recent, adapter=request.adapter, plain=self._plain
        )

    def _next(
        self, request: Request, guesses: Guesses, room: int, chance: float, is_choice: bool
    ) -> list[tuple[int, Source]]:
        """The next drafts and where they come from; none if nothing is likely enough."""
        grammar = request.grammar
        if grammar is not None and grammar.is_complete:
            return []
        run = self._likely(guesses.sure_tokens(room), chance)
        if run and grammar is not None:
            run = run[: grammar.accept([token for token, _ in run])]
        if run:
            return run
        if grammar is not None and not is_choice:
            forced = grammar.forced_tokens()[:room]
            if forced:
                return [(token, _FORCED) for token in forced[: grammar.accept(forced)]]
        for trust, token, source in self._ranked(guesses, grammar):
            if chance * trust < self._least_chance:
                break
            if _may_follow(grammar, token):
                return [(token, source)]
        return []

    def _likely(self, run: list[tuple[int, Source]], chance: float) -> list[tuple[int, Source]]:
        """As much of a run as is worth its rows."""
        for place, (_, source) in enumerate(run):
            chance *= self._trust.of(source)
            if chance < self._least_chance:
                return run[:place]
        return run

    def _ranked(self, guesses: Guesses, grammar: Grammar | None) -> Iterator[tuple[float, int, Source]]:
        """(trust, token, source), likeliest first; but what is sure comes before others are asked."""
        best: dict[int, tuple[float, Source]] = {}
        for kind, steps, found in guesses.suggestions(grammar):
            for token, strength in found:
                source = (kind, strength * steps >> 8)
                trust = self._trust.of(source)
                if trust > _SURE:
                    yield trust, token, source
                elif token not in best or trust > best[token][0]:
                    best[token] = (trust, source)
        yield from sorted(((trust, token, source) for token, (trust, source) in best.items()), reverse=True)


def _may_follow(grammar: Grammar | None, token: int) -> bool:
    return grammar is None or grammar.accept([token]) == 1
