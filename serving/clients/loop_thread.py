"""An event loop on a thread of its own, for clients that belong to one loop and are used from many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from serving.errors import EngineDeadError


class LoopThread:
    """Runs coroutines of any thread on one event loop.

    Args:
        name: of the thread.
    """

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
