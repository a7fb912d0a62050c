"""Pass a request's outputs from an engine's event loop to its reader's, and abort the request when the reader leaves.

relay = Relay(asyncio.get_running_loop(), on_output=count)
loop.submit(relay.run(outputs))  # `loop` is the engine's LoopThread
item = await relay.get()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from serving.clients.answer import EngineOutput
from serving.clients.loop_thread import LoopThread
from serving.errors import EngineDeadError

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
