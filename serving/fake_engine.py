"""An engine without a model, to test and build against: real streams, queues and failures.

Owns: a thread that computes a token for each running request a step, the bounded queue in front
of it, and ways to break it on purpose. Knows nothing of how answers come about (`fake_model`)

    engine = FakeEngine(tokenizer, answer=lambda prompt: "COUNT", step_seconds=0.01)
    engine.kill()  # every reader gets EngineDeadError, health fails
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection

from serving.checks import check_request
from serving.config import Settings
from serving.engine import Engine
from serving.errors import EngineBusyError, EngineDeadError, InvalidRequestError
from serving.fake_model import FakeGeneration, FakeModel, echo
from serving.text import Tokenizer
from serving.types import EngineStats, GenerationOutput, GenerationRequest, SamplingParams

DEFAULT_MAX_MODEL_LEN = 8192


def create(settings: Settings) -> Engine:
    """A fake engine with the tokenizer of the weights; it echoes, or obeys the grammar given."""
    return FakeEngine(
        Tokenizer.from_dir(settings.weights_dir),
        max_model_len=settings.max_model_len or DEFAULT_MAX_MODEL_LEN,
        max_num_seqs=settings.max_num_seqs,
        max_queue=settings.max_queue,
    )


class FakeEngine:
    """See `serving.engine.Engine`. A running request holds one block, whatever its length.

    Args:
        tokenizer: for the tokens of prompts and answers.
        answer: from the text of a prompt to the answer.
        max_model_len: tokens of a prompt and its answer.
        max_num_seqs: requests computed in one step.
        max_queue: requests that may wait for a place among them.
        step_seconds: time between two tokens.
        adapters: names that a request may ask for; they change nothing.
    """

    name = "fake"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        answer: Callable[[str], str] = echo,
        max_model_len: int = DEFAULT_MAX_MODEL_LEN,
        max_num_seqs: int = 4,
        max_queue: int = 16,
        step_seconds: float = 0.0,
        adapters: Collection[str] = (),
    ) -> None:
        self.max_model_len = max_model_len
        self._tokenizer = tokenizer
        self._model = FakeModel(tokenizer, answer)
        self._max_num_seqs = max_num_seqs
        self._max_queue = max_queue
        self._step_seconds = step_seconds
        self._adapters = adapters
        self._changed = threading.Condition()  # guards all that follows
        self._waiting: list[_Ticket] = []
        self._running: list[_Ticket] = []
        self._probes: list[_Ticket] = []
        self._num_steps = 0
        self._death: str | None = None
        self._hung = False
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """See `Engine.generate`."""
        with self._changed:
            self._raise_if_dead()
        check_request(
            request,
            max_model_len=self.max_model_len,
            vocab_size=self._tokenizer.vocab_size,
            adapters=self._adapters,
        )
        ticket = _Ticket(request.request_id, self._model.start(request, self.max_model_len))
        self._enqueue(ticket)
        try:
            while True:
                output = await ticket.receive()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._forget(ticket)

    async def health(self, timeout: float = 5.0) -> None:
        """See `Engine.health`. The probe takes part in the next step, whatever else runs or waits."""
        request = GenerationRequest("health", (0,), SamplingParams(max_tokens=1))
        ticket = _Ticket(request.request_id, self._model.start(request, self.max_model_len))
        with self._changed:
            self._raise_if_dead()
            self._probes.append(ticket)
            self._changed.notify()
        try:
            async with asyncio.timeout(timeout):
                await ticket.receive()
        except TimeoutError as error:
            raise EngineDeadError(f"the engine gave no token within {timeout} s; restart it") from error
        finally:
            self._forget(ticket)

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        with self._changed:
            return EngineStats(
                num_running=len(self._running),
                num_waiting=len(self._waiting),
                num_free_blocks=self._max_num_seqs - len(self._running),
                num_blocks=self._max_num_seqs,
                num_steps=self._num_steps,
            )

    def close(self) -> None:
        """See `Engine.close`."""
        self._die("the engine was closed")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def kill(self) -> None:
        """Die as an engine does whose process ends in the middle of a step."""
        self._die("the engine was killed; restart it")

    def hang(self) -> None:
        """Compute no further step, without dying."""
        with self._changed:
            self._hung = True

    def _enqueue(self, ticket: _Ticket) -> None:
        with self._changed:
            self._raise_if_dead()
            in_flight = self._waiting + self._running
            if any(other.request_id == ticket.request_id for other in in_flight):
                message = f"request_id {ticket.request_id!r} is in flight already; choose another"
                raise InvalidRequestError(message)
            if len(in_flight) >= self._max_num_seqs + self._max_queue:
                raise EngineBusyError(
                    f"{self._max_queue} requests are waiting, which is the limit; try later"
                )
            self._waiting.append(ticket)
            self._changed.notify()

    def _forget(self, ticket: _Ticket) -> None:
        with self._changed:
            for tickets in (self._waiting, self._running, self._probes):
                if ticket in tickets:
                    tickets.remove(ticket)

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)

    def _die(self, reason: str) -> None:
        with self._changed:
            if self._death is not None:
                return
            self._death = reason
            for tickets in (self._waiting, self._running, self._probes):
                for ticket in tickets:
                    ticket.send(EngineDeadError(reason))
                tickets.clear()
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except Exception as error:
            self._die(f"the engine's thread failed: {error!r}")
            raise

    def _step(self) -> bool:
        """Compute a token for every running request; False when the engine is dead."""
        with self._changed:
            self._changed.wait_for(self._has_work)
            if self._death is not None:
                return False
            while self._waiting and len(self._running) < self._max_num_seqs:
                self._running.append(self._waiting.pop(0))
            self._num_steps += 1
            for ticket in self._running + self._probes:
                output = ticket.generation.step()
                if output.finish_reason is not None:  # freed before the reader can know that it ended
                    self._forget(ticket)
                ticket.send(output)
        time.sleep(self._step_seconds)
        return True

    def _has_work(self) -> bool:
        has_requests = bool(self._waiting or self._running or self._probes)
        return self._death is not None or (has_requests and not self._hung)


class _Ticket:
    """A request in flight, and the way back to the event loop that waits for it."""

    def __init__(self, request_id: str, generation: FakeGeneration) -> None:
        self.request_id = request_id
        self.generation = generation
        self._loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[GenerationOutput | EngineDeadError] = asyncio.Queue()

    def send(self, output: GenerationOutput | EngineDeadError) -> None:
        """Called by the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._outputs.put_nowait, output)

    async def receive(self) -> GenerationOutput:
        """Called in the reader's loop."""
        output = await self._outputs.get()
        if isinstance(output, EngineDeadError):
            raise output
        return output
