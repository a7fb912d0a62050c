"""Choose which tokens of which requests the next step computes.

There are no phases: a step computes some of a request's tokens that are not computed yet: a chunk of a prompt, the last
token, or everything again after a preemption. If the last token is among them, drafts may follow, and it yields tokens.

Requests are served first come, first served: running before waiting ones, older before younger ones; of waiting ones,
one of each adapter in turn (`waiting_queue.py`). A prompt that is longer than a step leaves room for others
(`token_shares`). If all places are taken, an adapter that has none gets one of the adapter with most. A request that
needs blocks when there are none preempts the youngest, which returns to the head of the queue. The oldest therefore
always makes progress; and because a request that does not fit the cache alone is refused, there is no deadlock.

    output = scheduler.schedule()
    updates = scheduler.update_from_output(output, sampled_token_ids)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from serving.drafting.drafter import Drafter
from serving.engines.paged.block_manager import BlockManager
from serving.engines.paged.request import Request, RequestStatus
from serving.engines.paged.step import RequestUpdate, ScheduledRequest, SchedulerOutput
from serving.engines.paged.waiting_queue import WaitingQueue
from serving.types import CHOSEN, FinishReason

_STEPS_TO_NEXT = 3  # a client's next request comes within so many steps of the answer before
_MEAN_WEIGHT = 0.05  # weight of the newest value in the moving average of drafts


class Scheduler:
    """Continuous batching over one KV cache.

    Args:
        block_manager: allocates the blocks of the KV cache.
        drafter: proposes draft tokens.
        max_num_seqs: limit of requests running at once.
        max_num_batched_tokens: limit of tokens in a step, including drafts.
        long_share: tokens of a prompt that does not fit one step in each of its steps, while there are other requests.
        max_model_len: limit of prompt and output tokens of a request.
        max_draft_tokens: limit of drafts of a request in a step. Prompts leave room for as many drafts as decoding
            requests have had on average, up to half of `max_num_batched_tokens`.
        eos_token_ids: tokens that end a request.
    """

    def __init__(
        self,
        *,
        block_manager: BlockManager,
        drafter: Drafter,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        long_share: int,
        max_model_len: int,
        max_draft_tokens: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._blocks = block_manager
        self._drafter = drafter
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._long_share = long_share
        self._max_model_len = max_model_len
        self._max_draft_tokens = max_draft_tokens
        self._eos_token_ids = eos_token_ids
        self._waiting = WaitingQueue()
        self._running: list[Request] = []
        self._steps_without_others = _STEPS_TO_NEXT  # steps in a row that had long prompts only
        self._mean_drafts = float(max_draft_tokens)  # per decoding request and step: a moving average

    @property
    def num_running(self) -> int:
        """Number of requests that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Number of requests without blocks, including preempted ones."""
        return len(self._waiting)

    @property
    def requests(self) -> Iterator[Request]:
        """All unfinished requests."""
        yield from self._running
        yield from self._waiting

    def add(self, request: Request) -> None:
        """Queue a request; the caller has checked that it fits the KV cache alone."""
        self._waiting.add(request)

    def abort(self, request: Request) -> None:
        """Abort a request, running or waiting; does nothing if it has finished."""
        if request.status is RequestStatus.FINISHED:
            return
        (self._running if request.status is RequestStatus.RUNNING else self._waiting).remove(request)
        self._finish(request, FinishReason.ABORT)

    def schedule(self) -> SchedulerOutput:
        """Choose the tokens of the next step, and allocate blocks for them."""
        output = SchedulerOutput()
        has_others = bool(self._running and self._waiting) or not all(map(self._is_long, self._running))
        self._steps_without_others = 0 if has_others else self._steps_without_others + 1
        self._give_turn()
        budget = self._max_num_batched_tokens - self._reserve_for_drafts()
        self._schedule_running(output, budget)
        if not output.preempted:  # blocks are short, and a request must not be preempted and run in the same step
            self._schedule_waiting(output, budget)
        self._add_drafts(output)
        return output

    def _give_turn(self) -> None:
        """If all places are taken, give one of the adapter with most of them to a waiting adapter that has none."""
        if not self._waiting or len(self._running) < self._max_num_seqs:
            return
        places = Counter(request.adapter for request in self._running)
        adapter, most = places.most_common(1)[0]
        if most > 1 and self._waiting.bring_forward(places):
            victim = next(request for request in reversed(self._running) if request.adapter == adapter)
            self._running.remove(victim)
            self._suspend(victim)
            self._waiting.add_first(victim)

    def _reserve_for_drafts(self) -> int:
        """Number of tokens that prompts must leave for the drafts of decoding requests."""
        ready = sum(r.num_tokens - r.num_computed_tokens == 1 for r in self._running)
        spare = max(0, self._max_num_batched_tokens - len(self._running))
        # At least 1, so that the mean can rise again.
        each = min(max(1, round(self._mean_drafts)), self._max_draft_tokens)
        return min(ready * each, spare // 2)

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> None:
        shares = token_shares(
            [request.num_tokens - request.num_computed_tokens for request in self._running],
            [self._is_long(request) for request in self._running],
            budget,
            long_share=self._long_share,
            has_others=self._steps_without_others < _STEPS_TO_NEXT,
        )
        for index, share in enumerate(shares):
            if index == len(self._running):
                return  # the younger ones have been preempted
            if share == 0:
                continue
            request = self._running[index]
            item = self._next_tokens(request, share)
            if not self._make_room(request, item.end, output):
                return  # it was the youngest, and has been preempted itself
            output.add(item)

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        while (
            self._waiting
            and len(self._running) < self._max_num_seqs
            and output.num_scheduled_tokens < budget
            and self._admit(self._waiting.head)
        ):
            request = self._waiting.pop()
            self._running.append(request)
            request.status = RequestStatus.RUNNING
            room = budget - output.num_scheduled_tokens
            limit = self._long_share if output.scheduled and self._is_long(request) else room
            item = self._next_tokens(request, min(room, limit))
            allocated = self._blocks.allocate(request, item.end)
            assert allocated is not None, "admitted without room"
            output.add(item)

    def _is_long(self, request: Request) -> bool:
        """Whether it is in the middle of a prompt that does not fit one step."""
        prompt = request.num_tokens - request.cached_token_count
        return prompt > self._max_num_batched_tokens and request.num_tokens - request.num_computed_tokens > 1

    def _next_tokens(self, request: Request, budget: int) -> ScheduledRequest:
        start = request.num_computed_tokens
        return ScheduledRequest(request, start, min(request.num_tokens - start, budget), [])

    def _admit(self, request: Request) -> bool:
        """Attach cached blocks if there is room for the rest; a request with part of its prompt would be preempted."""
        cached = self._blocks.attach_prefix(request)
        missing = self._blocks.num_blocks_for(request.num_tokens) - len(request.block_ids)
        if missing > self._blocks.num_free_blocks:
            self._release(request)
            return False
        if request.num_preemptions == 0:
            request.cached_token_count = cached
        return True

    def _make_room(self, request: Request, num_tokens: int, output: SchedulerOutput) -> bool:
        """Allocate blocks, preempting the youngest request while there is no room; False if that was `request`."""
        while self._blocks.allocate(request, num_tokens) is None:
            victim = self._running.pop()
            self._suspend(victim)
            self._waiting.put_back(victim)
            output.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _suspend(self, victim: Request) -> None:
        self._release(victim)
        victim.status = RequestStatus.WAITING
        victim.num_preemptions += 1

    def _add_drafts(self, output: SchedulerOutput) -> None:
        """Divide the remaining tokens of the step equally among drafts; no request is preempted for them."""
        ready = [item for item in output.scheduled if item.samples]
        if not ready:
            return
        self._drafter.begin_step(len(ready))
        share = (self._max_num_batched_tokens - output.num_scheduled_tokens) // len(ready)
        for item in ready:
            request = item.request
            # The step itself yields one token in addition to accepted drafts.
            room = self._blocks.max_num_tokens(request) - item.end
            limit = min(self._max_draft_tokens, share, room, self._num_remaining(request) - 1)
            if limit <= 0:
                continue
            item.draft_token_ids = self._drafter.propose(request, limit)[:limit]
            count = len(item.draft_token_ids)
            possible = self._max_draft_tokens if count == share else count  # the share may have cut drafts short
            self._mean_drafts += _MEAN_WEIGHT * (possible - self._mean_drafts)
            output.num_scheduled_tokens += len(item.draft_token_ids)
            allocated = self._blocks.allocate(request, item.end + len(item.draft_token_ids))
            assert allocated is not None, "drafts without room"

    def _num_remaining(self, request: Request) -> int:
        """Number of tokens that a request may still generate."""
        by_request = request.max_tokens - request.num_output_tokens
        return min(by_request, self._max_model_len - request.num_tokens)

    def update_from_output(self, output: SchedulerOutput, sampled_token_ids: list[list[int]]) -> list[RequestUpdate]:
        """Update the requests of a step with their sampled tokens: accepted drafts and one more token each."""
        updates = []
        for item, token_ids in zip(output.scheduled, sampled_token_ids, strict=True):
            request = item.request
            if request.status is not RequestStatus.RUNNING:
                continue  # aborted during the step
            request.model_passes += 1
            if item.samples:
                updates.append(self._advance(item, token_ids))
            else:
                request.num_computed_tokens = item.end
                self._blocks.register(request)
        if any(update.finish_reason is not None for update in updates):
            self._running = [r for r in self._running if r.status is RequestStatus.RUNNING]
        return updates

    def _advance(self, item: ScheduledRequest, token_ids: list[int]) -> RequestUpdate:
        request = item.request
        accepted = _common_prefix(item.draft_token_ids, token_ids)
        num_tokens = request.num_tokens
        reason = self._append(request, token_ids)
        request.draft_token_count += len(item.draft_token_ids)
        request.accepted_token_count += accepted
        if item.draft_token_ids:
            self._drafter.observe(request, num_drafts=len(item.draft_token_ids), num_accepted=accepted)
        # The end token may be an accepted draft, but it is not one of the request's tokens.
        request.num_computed_tokens = min(item.end + accepted, request.num_tokens)
        self._blocks.truncate(request, request.num_computed_tokens)
        self._blocks.register(request)
        new = tuple(request.token_ids[num_tokens:])
        drafted = self._drafter.sources(request, len(item.draft_token_ids)) if item.draft_token_ids else ()
        sources = drafted[: min(accepted, len(new))]
        sources += (CHOSEN,) * (len(new) - len(sources))
        if reason is not None:
            self._finish(request, reason)
        return RequestUpdate(request, new, reason, sources, drafted, accepted)

    def _append(self, request: Request, token_ids: list[int]) -> FinishReason | None:
        for token_id in token_ids:
            if token_id in self._eos_token_ids:
                return FinishReason.STOP
            request.token_ids.append(token_id)
        if request.grammar is not None and request.grammar.is_complete:
            return FinishReason.STOP  # only the end token could follow, which needs no step
        return FinishReason.LENGTH if self._num_remaining(request) <= 0 else None

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self._drafter.finish(request)
        self._release(request)

    def _release(self, request: Request) -> None:
        self._blocks.free(request)
        request.num_computed_tokens = 0


def _common_prefix(first: list[int], second: list[int]) -> int:
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count


def token_shares(
    missing: Sequence[int], long: Sequence[bool], budget: int, *, long_share: int, has_others: bool
) -> list[int]:
    """How many tokens of each request a step computes: first come, first served, except for long prompts.

    While there are other requests, the oldest long prompt gets `long_share` tokens, or half as many as all the others
    if that is more; younger long ones wait for it.

    Args:
        missing: tokens of each running request that are not computed yet, oldest request first.
        long: whether each is in the middle of a long prompt.
        budget: tokens in the step; at least 1.
        long_share: tokens of the oldest long prompt, at least 1; the budget may allow fewer.
        has_others: whether there were other requests a few steps ago, which may come again at once.
    """
    shares = [0] * len(missing)
    is_shared = any(long) and (has_others or not all(long))
    if is_shared:
        first = long.index(True)
        shares[first] = min(missing[first], long_share, budget)
        budget -= shares[first]
    num_others = 0
    for index, count in enumerate(missing):
        if not (is_shared and long[index]):
            shares[index] = min(count, budget)
            budget -= shares[index]
            num_others += shares[index]
    if is_shared:
        shares[first] += max(0, min(num_others // 2, missing[first], shares[first] + budget) - shares[first])
    return shares
