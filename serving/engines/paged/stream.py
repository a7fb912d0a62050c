"""Send a request's tokens from the model's thread to the reader's event loop, where they are turned into text.

event = await stream.receive(patience=1.0)
output = DeltaBuilder(tokenizer, stop=("\\n",)).push(event)
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from serving.engines.paged.request import Request
from serving.engines.paged.step import RequestUpdate
from serving.errors import ServingError
from serving.text import IncrementalDetokenizer, Tokenizer
from serving.types import FinishReason, GenerationOutput, RequestMetrics, TokenLogprob, TokenPass


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One request's new tokens of one step.

    The last event has metrics. If the request has stop strings, all events have them, because any may become the last.
    `logprobs` has one entry for each of `token_ids` if the request asked for them.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    metrics: RequestMetrics | None
    logprobs: tuple[TokenLogprob, ...] = ()


class Stream:
    """A queue of events, created in the reader's event loop and written by the model's thread."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.request: Request | None = None  # None while its grammar is being compiled
        self.accepted_at = time.monotonic()
        self.began_at: float | None = None  # when the first step with this request began
        self.first_token_at: float | None = None
        self.passes: list[TokenPass] = []
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[StepEvent | ServingError] = asyncio.Queue()

    async def receive(self, patience: float) -> StepEvent | None:
        """The next event, or None if there is none within `patience` seconds.

        Raises:
            ServingError: the error that ended this request or the engine.
        """
        if self._events.empty():
            try:
                async with asyncio.timeout(patience):
                    event = await self._events.get()
            except TimeoutError:
                return None
        else:
            event = self._events.get_nowait()
        if isinstance(event, ServingError):
            raise event
        return event

    def add_step(
        self,
        update: RequestUpdate,
        *,
        began: float,
        ended: float,
        num_rows: int,
        choice_logprobs: tuple[float, ...] = (),
    ) -> None:
        """Note what a step gave this request; times by `time.monotonic()`, the end token's log probability left out."""
        if self.first_token_at is None:
            self.first_token_at = ended
        if update.sources or update.drafted:
            at = ended - self.accepted_at
            choices = choice_logprobs[: len(update.token_ids)]
            given = TokenPass(at, update.sources, update.drafted, update.num_accepted, ended - began, num_rows, choices)
            self.passes.append(given)

    def measure(self, request: Request) -> RequestMetrics:
        """The request's metrics so far."""
        first = self.first_token_at
        return RequestMetrics(
            input_token_count=request.num_prompt_tokens,
            output_token_count=request.num_output_tokens,
            model_passes=request.model_passes,
            cached_token_count=request.cached_token_count,
            time_to_first_token=None if first is None else first - self.accepted_at,
            total_time=time.monotonic() - self.accepted_at,
            draft_token_count=request.draft_token_count,
            accepted_token_count=request.accepted_token_count,
            queue_time=None if self.began_at is None else self.began_at - self.accepted_at,
            passes=tuple(self.passes),
        )

    @staticmethod
    def send(items: Iterable[tuple[Stream, StepEvent | ServingError]]) -> list[Stream]:
        """Send events, waking each event loop once; return the streams whose loop is closed."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, StepEvent | ServingError]]]
        by_loop = defaultdict(list)
        for item in items:
            by_loop[item[0]._loop].append(item)
        lost = []
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put, batch)
            except RuntimeError:  # the loop is closed
                lost += [stream for stream, _ in batch]
        return lost


def _put(batch: list[tuple[Stream, StepEvent | ServingError]]) -> None:
    for stream, event in batch:
        stream._events.put_nowait(event)


class DeltaBuilder:
    """Turns the events of one request into deltas, and ends them at a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, stop)
        self._num_tokens = 0

    def push(self, event: StepEvent) -> GenerationOutput:
        """The delta for an event. A stop string can make it the last, although the event is not."""
        text, token_ids = self._detokenizer.push_to_stop(event.token_ids)
        if event.finish_reason is not None:
            text += self._detokenizer.flush()
        self._num_tokens += len(token_ids)
        logprobs = event.logprobs[: len(token_ids)]
        if self._detokenizer.stopped_by is None:
            metrics = None if event.finish_reason is None else event.metrics
            return GenerationOutput(text, token_ids, event.finish_reason, metrics, logprobs)
        assert event.metrics is not None, "a request with stop strings is measured at every step"
        metrics = replace(event.metrics, output_token_count=self._num_tokens)
        return GenerationOutput(text, token_ids, FinishReason.STOP, metrics, logprobs)
