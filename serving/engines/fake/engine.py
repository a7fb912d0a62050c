"""An engine without a model, for tests and development, with real streams, a bounded queue and failures on demand.

engine = FakeEngine(tokenizer, answer=lambda prompt: "COUNT", step_seconds=0.01)
engine.kill()  # every reader gets EngineDeadError, health fails
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection

from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.engine import Engine
from serving.engines.fake.scripted_model import FakeGeneration, FakeModel, echo
from serving.errors import EngineBusyError, EngineDeadError, InvalidRequestError
from serving.request_checks import check_request
from serving.text import Tokenizer
from serving.types import EngineStats, GenerationOutput, GenerationRequest, SamplingParams

DEFAULT_MAX_MODEL_LEN = 8192
UNSUPPORTED = ("repetition_penalty", "presence_penalty", "frequency_penalty")  # a script has no logits


def create(settings: Settings, checkpoint: Checkpoint) -> Engine:
    """A fake engine with the tokenizer of the weights; it echoes the prompt as far as the request's grammar allows.

    The environment variable FAKE_STEP_SECONDS is its `step_seconds`.
    """
    return FakeEngine(
        checkpoint.tokenizer,
        max_model_len=settings.max_model_len or DEFAULT_MAX_MODEL_LEN,
        max_num_seqs=settings.max_num_seqs,
        max_queue=settings.max_queue,
        step_seconds=float(os.environ.get("FAKE_STEP_SECONDS", "0")),
        adapters=checkpoint.adapters,
    )


class FakeEngine:
    """See `serving.engine.Engine`. A running request holds one block, whatever its length.

    Args:
        tokenizer: makes the tokens of prompts and answers.
        answer: maps the text of a prompt to the answer.
        max_model_len: limit of prompt and output tokens of a request.
        max_num_seqs: limit of running requests.
        max_queue: limit of waiting requests.
        step_seconds: time between two tokens.
        adapters: names that requests may use; they have no effect.
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
        self._changed = threading.Condition()  # guards all attributes below
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
            unsupported=UNSUPPORTED,
        )
        if request.constraint is None:
            generation = self._model.start(request, self.max_model_len)
        else:
            generation = await asyncio.to_thread(self._model.start, request, self.max_model_len)
        ticket = _Ticket(request.request_id, generation)
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
        """See `Engine.health`. The probe takes part in the next step, whatever other requests there are."""
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
        """Fail like an engine whose process ends in the middle of a step."""
        self._die("the engine was killed; restart it")

    def hang(self) -> None:
        """Stop running steps, without failing."""
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
                raise EngineBusyError(f"{self._max_queue} requests are waiting, which is the limit; try again later")
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
        """Give every running request a token; return False if the engine is dead."""
        with self._changed:
            self._changed.wait_for(self._has_work)
            if self._death is not None:
                return False
            while self._waiting and len(self._running) < self._max_num_seqs:
                self._running.append(self._waiting.pop(0))
            self._num_steps += 1
            for ticket in self._running + self._probes:
                output = ticket.generation.step()
                if output.finish_reason is not None:  # freed before the reader can know that it has finished
                    self._forget(ticket)
                ticket.send(output)
        time.sleep(self._step_seconds)
        return True

    def _has_work(self) -> bool:
        has_requests = bool(self._waiting or self._running or self._probes)
        return self._death is not None or (has_requests and not self._hung)


class _Ticket:
    """A request in flight, and the queue to the reader's event loop."""

    def __init__(self, request_id: str, generation: FakeGeneration) -> None:
        self.request_id = request_id
        self.generation = generation
        self._loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[GenerationOutput | EngineDeadError] = asyncio.Queue()

    def send(self, output: GenerationOutput | EngineDeadError) -> None:
        """Send an output or an error; called by the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the reader's loop is closed
            self._loop.call_soon_threadsafe(self._outputs.put_nowait, output)

    async def receive(self) -> GenerationOutput:
        """The next output; called in the reader's event loop.

        Raises:
            EngineDeadError: the engine is dead.
        """
        output = await self._outputs.get()
        if isinstance(output, EngineDeadError):
            raise output
        return output
