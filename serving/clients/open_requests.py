"""The bounded set of requests that another engine computes for us, on an event loop of its own thread.

in_flight = OpenRequests(max_num_seqs=32, max_queue=256)
relay = in_flight.admit("id-1", check_alive)
loop.submit(relay.run(outputs))  # `loop` is the engine's LoopThread
item = await relay.get()
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

from serving.clients.answer import EngineOutput
from serving.errors import EngineBusyError, EngineDeadError, InvalidRequestError
from serving.types import EngineStats


class LoopThread:
    """Runs coroutines of any thread on one event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine.

        Raises:
            EngineDeadError: the loop was stopped.
        """
        try:
            asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:  # stopped since the caller checked
            coroutine.close()
            raise EngineDeadError("the engine was closed; make a new one") from error

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Wait for the result of a coroutine; blocks the calling thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function on the loop; does nothing if the loop was stopped."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel all tasks, close the loop and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop):
            self._loop.run_forever()


CLOSED = "the engine was closed while this request ran"


class Relay:
    """A queue between two event loops: created on the reader's loop, while `run` runs on the engine's.

    Args:
        reader_loop: the event loop on which `get` is awaited.
        on_output: called on the engine's loop for each output, before it is passed on.
    """

    def __init__(self, reader_loop: asyncio.AbstractEventLoop, on_output: Callable[[], None]) -> None:
        self._reader_loop = reader_loop
        self._on_output = on_output
        self._outputs: asyncio.Queue[EngineOutput | BaseException] = asyncio.Queue()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self.started = time.monotonic()

    def put(self, item: EngineOutput | BaseException) -> None:
        """Send an output or an error, from any thread; does nothing if the reader's loop is closed."""
        with suppress(RuntimeError):
            self._reader_loop.call_soon_threadsafe(self._outputs.put_nowait, item)

    async def get(self) -> EngineOutput:
        """The next output.

        Raises:
            EngineDeadError: the engine was closed.
            Exception: any error that `run` met.
        """
        item = await self._outputs.get()
        if isinstance(item, BaseException):
            raise item
        return item

    async def run(self, outputs: AsyncIterator[EngineOutput]) -> None:
        """Iterate over the engine's outputs. Cancelling this task ends the iteration, which aborts the request."""
        self._task = asyncio.current_task()
        if self._cancelled:
            return
        try:
            async for output in outputs:
                self._on_output()
                self.put(output)
        except asyncio.CancelledError:
            self.put(EngineDeadError(CLOSED))
        except Exception as error:  # no one awaits this task, so the error is sent to the reader
            self.put(error)

    def cancel(self, loop: LoopThread) -> None:
        """Abort the request, from any thread; does nothing if it has finished."""
        self._cancelled = True
        loop.call_soon(self._cancel_task)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()


class OpenRequests:
    """The requests of an engine that have not ended, by their ids; bounded."""

    def __init__(self, *, max_num_seqs: int, max_queue: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._capacity = max_num_seqs + max_queue
        self._relays: dict[str, Relay] = {}
        self._lock = threading.Lock()
        self.is_closed = False
        self.num_outputs = 0

    def admit(self, request_id: str, check_alive: Callable[[], None]) -> Relay:
        """A relay for a new request; to be called on its reader's loop.

        `check_alive` raises EngineDeadError if the engine cannot answer any more.

        Raises:
            InvalidRequestError: the id is in flight.
            EngineBusyError: the limits are reached.
            EngineDeadError: see `check_alive`.
        """
        with self._lock:
            check_alive()
            if request_id in self._relays:
                raise InvalidRequestError(f"request id {request_id!r} is in flight; choose another")
            if len(self._relays) >= self._capacity:
                raise EngineBusyError(f"busy: {self._capacity} requests are in flight; try again later")
            relay = self._relays[request_id] = self._relay()
        return relay

    def _relay(self) -> Relay:
        return Relay(asyncio.get_running_loop(), self._count_output)

    async def probe(self, loop: LoopThread, outputs: AsyncIterator[EngineOutput], timeout: float) -> bool:
        """Whether any request gets a token in time; that of the probe itself may be queued after many others.

        Args:
            loop: the engine's.
            outputs: those of a request for one token, which counts towards no limit.
            timeout: seconds.

        Raises:
            Exception: any error that `outputs` raise.
        """
        before = self.num_outputs
        relay = self._relay()
        loop.submit(relay.run(outputs))
        own = asyncio.ensure_future(relay.get())
        try:
            async with asyncio.timeout(timeout):
                while not own.done() and self.num_outputs == before:
                    await asyncio.wait({own}, timeout=0.02)
            if own.done():
                own.result()
        except TimeoutError:
            return False
        finally:
            own.cancel()
            relay.cancel(loop)
        return True

    def release(self, request_id: str) -> None:
        """Forget a request that has ended."""
        with self._lock:
            self._relays.pop(request_id, None)

    def close(self) -> bool:
        """Send EngineDeadError to all readers; False if that was done before."""
        with self._lock:
            if self.is_closed:
                return False
            self.is_closed = True
            relays = list(self._relays.values())
        for relay in relays:
            relay.put(EngineDeadError(CLOSED))
        return True

    def stats(self) -> EngineStats:
        """The numbers of requests, and of outputs as steps; there are no blocks."""
        count = len(self._relays)
        running = min(count, self._max_num_seqs)
        return EngineStats(running, count - running, 0, 0, self.num_outputs)

    def _count_output(self) -> None:
        """Called on the engine's loop, so that a slow reader does not delay the count."""
        self.num_outputs += 1
