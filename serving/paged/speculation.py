"""The drafter: what will the model most likely write, and is it worth a row of the next pass?

Owns: where guesses come from and how far each is trusted. Knows nothing of the model or of the task.
In this order: what the grammar forces; then, of all that is suggested, what has proved right most
often. Suffix matches are sought in the answer so far and its prompt, in answers this process gave
lately (by adapter), and in a table that ships with the weights; a small draft model, which ships with
them too, is asked where that table is not sure. Suffix matching as a drafter is from "Prompt Lookup
Decoding" (Saxena 2023) and "SuffixDecoding" (Oliaro et al. 2024), the draft model from "Fast Inference from
Transformers via Speculative Decoding" (Leviathan et al. 2023); the trust that is learned per source, and
the rule for how many, are this package's.

How many drafts: a row of a pass costs `row_cost` (in units of a pass's fixed cost), and a pass with
R rows that is to yield N tokens therefore (1 + row_cost R) / N a token. A draft is worth its row if
its chance to be accepted is above row_cost N / (1 + row_cost R). As the batch grows N grows with it,
and drafts must be surer; as acceptance falls, so do the chances, and drafts end sooner.

    drafter = SpeculativeDrafter(table, model, row_cost=0.06)
    drafter.propose(request, max_tokens=16)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from serving.draft_model import DraftModel, DraftText
from serving.ngrams import START, Context, NgramTable, RecentNgrams
from serving.paged.request import Grammar, Request
from serving.paged.trust import MODEL_STEPS, TABLE_STEPS, Source, Trust
from serving.suffix import SuffixText
from serving.types import FinishReason

_OWN_ORDERS = (1, 2, 3, 4, 6)
_RECENT_ORDERS = (2, 3, 4, 6, 8, 12)
_RECENT_CAPACITY = 60_000  # n-grams of a generation: about 150 answers, some 10 MB
_MAX_ADAPTERS = 64

_FORCED: Source = ("forced", 0)
_SURE = 0.95  # what is trusted more is not compared with anything


@dataclass
class _Follower:
    """What the drafter remembers of one request."""

    text: DraftText | None  # what the draft model reads, if it is for prompts like this
    own: SuffixText = field(default_factory=SuffixText)  # prompt and answer, leading spaces taken off
    written: Context = field(default_factory=lambda: Context((START,)))  # the answer
    proposed: list[Source] = field(default_factory=list)


class SpeculativeDrafter:
    """Drafts from the grammar, from n-grams and from a draft model; see the module's text.

    Args:
        table: n-grams of answers that ship with the weights; None without.
        model: likewise.
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
        self._recent: dict[str | None, RecentNgrams] = {}
        self._yield = 3.0  # tokens that a request gets from a pass, lately
        self._drafts = 6.0  # drafts that a request has in a pass, lately
        self._least_chance = 0.0

    def begin_step(self, *, num_requests: int, num_rows: int) -> None:
        """Settle what a draft must promise in a pass of `num_rows` known tokens and `num_requests` drafts."""
        rows = num_rows + num_requests * self._drafts
        tokens = num_requests * self._yield
        self._least_chance = self._row_cost * tokens / (1.0 + self._row_cost * rows)

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        """At most `max_tokens` tokens, each likely enough to be worth its row."""
        follower = self._follow(request)
        known, written = len(follower.own), len(follower.written)
        drafts: list[int] = []
        follower.proposed = []
        chance = 1.0
        while len(drafts) < max_tokens:
            # After what was forced there is a choice: no need to ask the grammar again.
            is_choice = bool(follower.proposed) and follower.proposed[-1] is _FORCED
            tokens, source = self._next(request, follower, max_tokens - len(drafts), chance, is_choice)
            if not tokens:
                break
            chance *= self._trust.of(source) ** len(tokens)
            drafts += tokens
            follower.proposed += [source] * len(tokens)
            follower.own.extend(tokens, self._plain)
            follower.written.extend(tokens)
        follower.own.cut(known)
        follower.written.cut(written)
        if request.grammar is not None and drafts:
            request.grammar.rollback(len(drafts))
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
        """Forget the request, and learn the n-grams of its answer if it is a whole one."""
        self._followers.pop(request.request_id, None)
        if request.finish_reason is not FinishReason.STOP:
            return  # half an answer teaches a wrong end
        recent = self._recent.pop(request.adapter, None)
        if recent is None:
            recent = RecentNgrams(orders=_RECENT_ORDERS, capacity=_RECENT_CAPACITY)
        written = Context((START,))
        for token in request.output_token_ids:
            recent.learn(written, token)
            written.append(token)
        self._recent[request.adapter] = recent  # the last one is the one used last
        if len(self._recent) > _MAX_ADAPTERS:
            del self._recent[next(iter(self._recent))]

    def _follow(self, request: Request) -> _Follower:
        follower = self._followers.get(request.request_id)
        if follower is None:
            follower = self._followers[request.request_id] = self._begin(request)
        follower.own.extend(request.token_ids[len(follower.own) :], self._plain)
        # START stands before the answer
        follower.written.extend(request.output_token_ids[len(follower.written) - 1 :])
        return follower

    def _begin(self, request: Request) -> _Follower:
        prompt = request.token_ids[: request.num_prompt_tokens]
        return _Follower(None if self._model is None else self._model.begin(prompt))

    def _next(
        self, request: Request, follower: _Follower, room: int, chance: float, is_choice: bool
    ) -> tuple[list[int], Source]:
        """The next drafts and where they come from; none if nothing is likely enough."""
        grammar = request.grammar
        if grammar is not None:
            if grammar.is_complete:
                return [], _FORCED
            forced = [] if is_choice else grammar.forced_tokens()[:room]
            if forced:
                return forced[: grammar.accept(forced)], _FORCED
        for trust, token, source in self._ranked(request, follower):
            if chance * trust < self._least_chance:
                break
            if _may_follow(grammar, token):
                return [token], source
        return [], _FORCED

    def _ranked(self, request: Request, follower: _Follower) -> Iterator[tuple[float, int, Source]]:
        """(trust, token, source), likeliest first; but what is sure comes before others are asked."""
        best: dict[int, tuple[float, Source]] = {}
        for kind, steps, found in self._suggestions(request, follower):
            for token, strength in found:
                source = (kind, strength * steps >> 8)
                trust = self._trust.of(source)
                if trust > _SURE:
                    yield trust, token, source
                elif token not in best or trust > best[token][0]:
                    best[token] = (trust, source)
        yield from sorted(((trust, token, source) for token, (trust, source) in best.items()), reverse=True)

    def _suggestions(
        self, request: Request, follower: _Follower
    ) -> Iterator[tuple[str, int, Iterable[tuple[int, int]]]]:
        """A kind of guess, in how many steps its strength is told apart of 256, and guesses with strength."""
        if self._table is not None:
            yield "table", TABLE_STEPS, self._table.successors(follower.written)
        if follower.text is not None:
            answer = follower.own.since(request.num_prompt_tokens)
            yield "model", MODEL_STEPS, follower.text.guesses(answer)
        own = list(follower.own.successors(_OWN_ORDERS))
        yield "own", 256, ((token, order) for token, _, order in own)
        yield "twin", 256, ((twin, order) for token, twin, order in own if twin != token)
        recent = self._recent.get(request.adapter)
        if recent is not None:
            yield "recent", 256, recent.successors(follower.written)


def _may_follow(grammar: Grammar | None, token: int) -> bool:
    return grammar is None or grammar.accept([token]) == 1
