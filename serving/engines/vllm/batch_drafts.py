"""Draft for the running requests of another engine's batch, of which only the tokens and the grammars' texts are known.

grammars = DraftGrammars(vocabulary)
drafts = BatchDrafts(drafter, begin_grammar=grammars.begin, cost=cost, vocab_size=49152)
drafts.propose([row, None], verified={"a": [5, 9]}, running={"a", "b"})
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotReadyError
from dataclasses import dataclass
from pathlib import Path

import llguidance

from serving.drafting.draft_model import DraftModel
from serving.drafting.drafter import Drafter, Grammar
from serving.drafting.speculative import MeasuredCost
from serving.engines.vllm.choose_again import begun_of
from serving.errors import GrammarError
from serving.grammar.grammar_limits import limited_matcher
from serving.grammar.grammar_state import GrammarState
from serving.types import FinishReason

_PATIENCE = 0.02  # seconds that a step may wait for a grammar; most compile in 2 to 4 ms


class DraftGrammars:
    """Compiled grammars; the most recently used ones are kept. Used from one thread.

    vLLM has accepted the grammars before and checks each draft against its own copy. So a grammar that fails here only
    means worse drafts.
    """

    def __init__(self, vocabulary: llguidance.LLTokenizer, *, cache_size: int = 64) -> None:
        self._vocabulary = vocabulary
        self._cache_size = cache_size
        self._compiled: OrderedDict[str, Future[llguidance.LLMatcher]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="draft-grammars")
        self._executor = llguidance.LLExecutor(1)

    def begin(self, text: str) -> GrammarState | None:
        """A new state at the start of the grammar; None while it is being compiled, so ask again in the next step.

        Raises:
            GrammarError: it does not compile within the limits.
        """
        future = self._compiled.get(text)
        if future is None:
            future = self._compiled[text] = self._thread.submit(self._compile, text)
            if len(self._compiled) > self._cache_size:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(text)
        try:
            matcher = future.result(timeout=_PATIENCE)
        except NotReadyError:
            return None
        state = GrammarState(matcher.deep_copy(), self._executor, lambda: self._forget(text))
        state.accept(list(begun_of(text).token_ids))
        return state

    def _compile(self, text: str) -> llguidance.LLMatcher:
        matcher = limited_matcher(self._vocabulary, text)
        if matcher.is_error():
            raise GrammarError(matcher.get_error().partition("\n")[0])
        return matcher

    def _forget(self, text: str) -> None:
        self._compiled.pop(text, None)


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A request that got tokens in the step that has just ended.

    Args:
        request_id: unique among the requests that run.
        prompt_token_ids: its prompt.
        output_token_ids: all its tokens so far, including those of this step.
        num_new: how many of those this step added; at least one.
        end_token_ids: tokens that end it.
        grammar: its grammar as llguidance reads it; None without one.
        adapter: name of its LoRA adapter; None for the base.
        max_drafts: limit of its drafts in the next step.
        draft_model: that of its adapter; None without.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    num_new: int
    end_token_ids: Collection[int]
    grammar: str | None
    adapter: str | None
    max_drafts: int
    draft_model: DraftModel | None = None


class BatchDrafts:
    """Keeps the drafter informed of what became of its drafts, and the requests' grammars up to date.

    Args:
        drafter: finds the drafts.
        begin_grammar: a new state of a grammar; None if it is not ready; raises GrammarError if it never will be.
        cost: told how long each step took.
        vocab_size: drafts are below this.
        load_model: loads the draft model of an adapter.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        begin_grammar: Callable[[str], Grammar | None],
        cost: MeasuredCost,
        vocab_size: int,
        load_model: Callable[[Path], DraftModel],
    ) -> None:
        self.load_model = load_model
        self._drafter = drafter
        self._begin_grammar = begin_grammar
        self._cost = cost
        self._vocab_size = vocab_size
        self._requests: dict[str, _RunningRequest] = {}
        self._drafting_seconds = 0.0

    def add_step(self, *, rows: int, seconds: float) -> None:
        """Count a step without prompts: its rows, and the seconds until its tokens were known."""
        self._cost.add(rows=rows, seconds=seconds + self._drafting_seconds)  # the drafts of these rows took time too

    def propose(
        self, rows: Sequence[DraftRow | None], *, verified: Mapping[str, Sequence[int]], running: Collection[str]
    ) -> list[list[int]]:
        """Drafts for each row; none for None, which is a request in the middle of its prompt.

        Args:
            rows: the batch, in its order.
            verified: by request id, the drafts that this step verified: the last ones of the request, which the engine
                may have cut, or others that it has put in their place.
            running: ids of all requests, including preempted ones; others have finished or were aborted.
        """
        start = time.perf_counter()
        for request_id in self._requests.keys() - running:
            self._drafter.finish(self._requests.pop(request_id))
        drafting = [self._update(row, verified) for row in rows]
        self._drafter.begin_step(sum(request is not None for request in drafting))
        drafts = [
            [] if request is None or row is None else self._drafts(request, row)
            for row, request in zip(rows, drafting, strict=True)
        ]
        self._drafting_seconds = time.perf_counter() - start
        return drafts

    def _update(self, row: DraftRow | None, verified: Mapping[str, Sequence[int]]) -> _RunningRequest | None:
        """The request of a row, if drafts for it make sense."""
        if row is None:
            return None
        request = self._requests.get(row.request_id)
        if request is None:
            request = self._requests[row.request_id] = _RunningRequest(row)
        elif request.drafts is not None:
            drafts = tuple(verified.get(row.request_id, ()))
            if drafts == request.drafts[: len(drafts)]:
                accepted = min(row.num_new - 1, len(drafts))
                self._drafter.observe(request, num_drafts=len(drafts), num_accepted=accepted)
            request.drafts = None
        request.extend(row)
        if request.finish_reason is not None or row.max_drafts < 1:
            return None
        return request if request.follow_grammar(self._begin_grammar) else None

    def _drafts(self, request: _RunningRequest, row: DraftRow) -> list[int]:
        drafts = self._drafter.propose(request, row.max_drafts)[: row.max_drafts]
        # The end token comes without a draft, as the token after the last accepted one.
        for place, token in enumerate(drafts):
            if token in row.end_token_ids or not 0 <= token < self._vocab_size:
                drafts = drafts[:place]
                break
        request.drafts = tuple(drafts)
        return drafts


class _RunningRequest:
    """A request as the drafter sees it: see `drafter.DraftRequest`."""

    def __init__(self, row: DraftRow) -> None:
        self.request_id = row.request_id
        self.adapter = row.adapter
        self.grammar: Grammar | None = None
        self.draft_model = row.draft_model
        self.finish_reason: FinishReason | None = None
        self.output_token_ids: list[int] = []
        self.drafts: tuple[int, ...] | None = None  # the last ones, until their outcome is known
        self._prompt = list(row.prompt_token_ids)
        self._grammar_text = row.grammar  # None also after the grammar was given up
        self._num_followed = 0  # tokens that the grammar has consumed

    @property
    def token_ids(self) -> list[int]:
        """See `drafter.DraftRequest`."""
        return [*self._prompt, *self.output_token_ids]

    @property
    def num_prompt_tokens(self) -> int:
        """See `drafter.DraftRequest`."""
        return len(self._prompt)

    def extend(self, row: DraftRow) -> None:
        """Append the tokens that are new; an end token finishes the request and is no part of its answer."""
        for token in row.output_token_ids[len(self.output_token_ids) :]:
            if token in row.end_token_ids:
                self.finish_reason = FinishReason.STOP
                return
            self.output_token_ids.append(token)

    def follow_grammar(self, begin: Callable[[str], Grammar | None]) -> bool:
        """Advance the grammar past the output; False if it is not compiled yet.

        A grammar that fails, or does not allow the output, is given up: vLLM's own may differ, for example because it
        constrains only what follows a model's reasoning.
        """
        if self._grammar_text is None:
            return True
        try:
            if self.grammar is None:
                self.grammar = begin(self._grammar_text)
            if self.grammar is None:
                return False
            new = self.output_token_ids[self._num_followed :]
            self._num_followed += len(new)
            if self.grammar.accept(new) == len(new):
                return True
        except GrammarError:
            pass
        self.grammar = self._grammar_text = None
        return True
