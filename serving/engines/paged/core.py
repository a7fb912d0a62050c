"""The thread that owns the model and runs its steps.

Other threads call `open`, `submit` and `discard`, which return at once; the thread sends events to each request's
`Stream`.

    core = EngineCore(scheduler, runner, watch=watch, max_in_flight=288)
    core.submit(stream, request)
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Sequence

from serving.drafting.speculative import MeasuredCost
from serving.engines.paged.model_runner import ModelRunner
from serving.engines.paged.request import Request
from serving.engines.paged.scheduler import Scheduler
from serving.engines.paged.step import RequestUpdate, StepClock
from serving.engines.paged.stream import StepEvent, Stream
from serving.engines.paged.watch import StepWatch
from serving.errors import EngineBusyError, EngineDeadError, InvalidRequestError, ServingError
from serving.types import TokenLogprob

logger = logging.getLogger(__name__)


class EngineCore:
    """Runs steps while there are requests, and sleeps while there are none.

    Args:
        scheduler: used only by this thread from now on, like `runner`.
        runner: executes the steps.
        watch: detects a step that hangs, after which the engine is dead.
        max_in_flight: limit of running and waiting requests.
        clock: measures the parts of a step.
        cost: told how long each step without prompts took; None where that is measured elsewhere.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        *,
        watch: StepWatch,
        max_in_flight: int,
        clock: StepClock | None = None,
        cost: MeasuredCost | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._watch = watch
        self._max_in_flight = max_in_flight
        self._clock = clock or StepClock()
        self._cost = cost
        self._changed = threading.Condition()  # guards the next five
        self._streams: dict[str, Stream] = {}  # in flight, by request id
        self._probes: set[Stream] = set()
        self._submitted: list[Stream] = []
        self._discarded: list[Stream] = []
        self._death: str | None = None
        self._stream_of: dict[Request, Stream] = {}  # used only by this thread, like num_steps
        self.num_steps = 0
        self._thread = threading.Thread(target=self._run, name="paged-engine", daemon=True)
        self._thread.start()
        # A step that still runs when the interpreter shuts down would crash in it.
        atexit.register(self.close)

    # --- called by other threads ---

    def open(self, request_id: str, *, is_probe: bool = False) -> Stream:
        """Reserve a place for a request.

        The place of a probe is beyond the limit, and its stream gets an event when any request produces a token.

        Raises:
            EngineDeadError: the engine is dead.
            EngineBusyError: `max_in_flight` requests run or wait.
            InvalidRequestError: a request with this id is in flight already.
        """
        stream = Stream(request_id)
        self.raise_if_dead()
        with self._changed:
            if request_id in self._streams:
                message = f"request_id {request_id!r} is in flight already; choose another"
                raise InvalidRequestError(message)
            if is_probe:
                self._probes.add(stream)
            elif len(self._streams) - len(self._probes) >= self._max_in_flight:
                message = f"{self._max_in_flight} requests run or wait, which is the limit; try again later"
                raise EngineBusyError(message)
            self._streams[request_id] = stream
        return stream

    def submit(self, stream: Stream, request: Request) -> None:
        """Queue a request; its events are sent to `stream`.

        Raises:
            EngineDeadError: the engine is dead.
        """
        with self._changed:
            if self._death is not None:
                raise EngineDeadError(self._death)
            stream.request = request
            self._submitted.append(stream)
            self._changed.notify()

    def discard(self, stream: Stream) -> None:
        """Give up a stream's place, and abort its request if it has not finished."""
        with self._changed:
            self._probes.discard(stream)
            if self._streams.get(stream.request_id) is stream:
                del self._streams[stream.request_id]
                if stream.request is not None:
                    self._discarded.append(stream)
                    self._changed.notify()

    async def receive(self, stream: Stream) -> StepEvent:
        """The next event of a stream.

        Raises:
            EngineDeadError: the engine is dead, or hangs, which is detected here.
            ServingError: the error that ended the request.
        """
        while True:
            event = await stream.receive(patience=self._watch.blocked_limit / 4)
            if event is not None:
                return event
            self.raise_if_dead()

    def raise_if_dead(self) -> None:
        """Check that the engine is alive.

        Raises:
            EngineDeadError: it has failed, was closed, or hangs.
        """
        if self._watch.is_hung():
            self.die("the engine hangs in a step that does not end; restart it")
        if self._death is not None:
            raise EngineDeadError(self._death)

    def die(self, reason: str) -> None:
        """End all requests with EngineDeadError at once; the thread ends after its current step."""
        with self._changed:
            if self._death is not None:
                return
            self._death = reason
            streams = list(self._streams.values())
            self._streams.clear()
            self._probes.clear()
            self._changed.notify()
        Stream.send((stream, EngineDeadError(reason)) for stream in streams)

    def close(self, timeout: float = 10.0) -> None:
        """End all requests, and wait up to `timeout` seconds for the thread. May be called twice, from any thread."""
        self.die("the engine was closed")
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        atexit.unregister(self.close)

    @property
    def num_in_flight(self) -> int:
        """Number of requests that have been accepted and have not finished."""
        return len(self._streams)

    @property
    def num_running(self) -> int:
        """Number of requests that hold blocks."""
        return self._scheduler.num_running

    @property
    def step_seconds(self) -> dict[str, float]:
        """Time of all steps so far, by part, in seconds."""
        return self._clock.seconds

    # --- called by the engine's thread ---

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._watch.begin()
                self.step()
                self._watch.end()
        except BaseException as error:
            logger.exception("the paged engine's thread failed")
            self.die(f"the engine failed: {error!r}; restart it")
        finally:
            self._watch.end()
            for request in list(self._scheduler.requests):
                self._scheduler.abort(request)

    def _wait_for_work(self) -> bool:
        scheduler = self._scheduler
        with self._changed:
            while self._death is None:
                if self._submitted or self._discarded or scheduler.num_running or scheduler.num_waiting:
                    return True
                self._changed.wait()
        return False

    def step(self) -> None:
        """Run one step: take in new and discarded requests, schedule, execute, update, and send events."""
        self._clock.start()
        began = time.monotonic()
        self._take_in_requests()
        output = self._scheduler.schedule()
        self._clock.lap("schedule, draft")
        if not output.scheduled:
            return
        for item in output.scheduled:
            if item.request.model_passes == 0:
                self._stream_of[item.request].began_at = began
        result = self._runner.execute(output)
        if result.failures:
            self._end_failed(result.failures)
        updates = self._scheduler.update_from_output(output, result.sampled_token_ids)
        self.num_steps += 1
        ended, num_rows = time.monotonic(), output.num_scheduled_tokens
        if self._cost is not None and not output.has_prompts:  # the time to find drafts is part of what they cost
            self._cost.add(rows=num_rows, seconds=ended - began)
        for update in updates:
            choices = tuple(result.choice_logprobs.get(update.request.request_id, ()))
            stream = self._stream_of[update.request]
            stream.add_step(update, began=began, ended=ended, num_rows=num_rows, choice_logprobs=choices)
        self._send(updates, result.logprobs)
        self._clock.lap("update, send")

    def _take_in_requests(self) -> None:
        with self._changed:
            submitted, self._submitted = self._submitted, []
            discarded, self._discarded = self._discarded, []
        for stream in submitted:
            assert stream.request is not None
            self._stream_of[stream.request] = stream
            self._scheduler.add(stream.request)
        for stream in discarded:
            assert stream.request is not None
            self._stream_of.pop(stream.request, None)
            self._scheduler.abort(stream.request)

    def _send(self, updates: list[RequestUpdate], logprobs: dict[str, list[TokenLogprob]]) -> None:
        """Send events. Blocks and places of finished requests are freed before their readers can know."""
        if not updates:
            return
        items = [(self._stream_of[u.request], u) for u in updates]
        events = [(stream, self._event(stream, u, logprobs.get(stream.request_id, ()))) for stream, u in items]
        with self._changed:
            events += [(probe, StepEvent((), None, None)) for probe in self._probes]
            for stream, update in items:
                if update.finish_reason is not None:
                    del self._stream_of[update.request]
                    if self._streams.get(stream.request_id) is stream:
                        del self._streams[stream.request_id]
        for stream in Stream.send(events):
            self.discard(stream)

    def _event(self, stream: Stream, update: RequestUpdate, logprobs: Sequence[TokenLogprob]) -> StepEvent:
        request = update.request
        measured = update.finish_reason is not None or request.sampling.stop
        metrics = stream.measure(request) if measured else None
        # The log probability of an end token is left out, like the token.
        return StepEvent(update.token_ids, update.finish_reason, metrics, tuple(logprobs[: len(update.token_ids)]))

    def _end_failed(self, failures: dict[str, ServingError]) -> None:
        for request in [r for r in self._stream_of if r.request_id in failures]:
            stream = self._stream_of.pop(request)
            self._scheduler.abort(request)
            with self._changed:
                self._streams.pop(stream.request_id, None)
            Stream.send([(stream, failures[request.request_id])])
