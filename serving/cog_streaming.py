"""Stream chunks from a prediction under Cog's server, with concurrent predictions and cancellation.

Cog collects the output of an async generator before it sends anything, and runs sync generators one after the other.
But a sync generator that an `async def` *returns* is iterated chunk by chunk, in its own thread. So an asyncio task
fills a queue, and such a generator reads from it.

    async def predict(self, …) -> ConcatenateIterator[str]:
        return stream(self._answer(…))   # _answer is an async generator
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing

from cog import CancelationException


def stream(chunks: AsyncGenerator[str]) -> Generator[str]:
    """A sync generator over `chunks`, which start to run on the calling coroutine's event loop at once.

    An error of `chunks` is raised by the generator and not by the coroutine, because Cog reports a *coroutine's* error
    whose text has the word "cancelled" as a cancelled prediction. Metrics, logs and prints inside `chunks` belong to
    this prediction, because their task inherits its context. When Cog cancels, `chunks` are closed, then the generator
    ends.
    """
    feed = _Feed(chunks)
    on_cancel(feed.cancel)
    return feed.drain()


class _Feed:
    """A queue of chunks from the event loop to the thread in which Cog iterates."""

    def __init__(self, chunks: AsyncGenerator[str]) -> None:
        self._queue: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._fill(chunks))
        # A callback, because a task that is cancelled before it starts never runs its `finally`.
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Close the chunks; may be called from any thread at any time."""
        self._loop.call_soon_threadsafe(self._task.cancel)

    def drain(self) -> Generator[str]:
        """Yield the chunks in order, then raise the error that ended them, if any."""
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.cancel()  # for when Cog drops the generator; does nothing if the task is done

    async def _fill(self, chunks: AsyncGenerator[str]) -> None:
        async with aclosing(chunks):
            async for chunk in chunks:
                self._queue.put(chunk)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._queue.put(CancelationException("canceled") if task.cancelled() else task.exception())


def on_cancel(callback: Callable[[], None]) -> bool:
    """Have `callback` called, from any thread, when Cog cancels the prediction of the current task.

    Cog calls `cancel()` of the future from `asyncio.run_coroutine_threadsafe`, which does nothing once the coroutine
    has returned its generator; so that method is wrapped.

    Returns:
        False if the future cannot be found because Cog or asyncio has changed: then predictions cannot be cancelled,
        but everything else works.
    """
    future = _future_of(asyncio.current_task())
    if future is None:
        return False
    cancel = future.cancel

    def cancel_with_callback() -> bool:
        callback()
        return cancel()

    future.cancel = cancel_with_callback  # type: ignore[method-assign]
    if future.cancelled():  # before the method was wrapped
        callback()
    return True


def _future_of(task: asyncio.Task[object] | None) -> concurrent.futures.Future[object] | None:
    """The future that `run_coroutine_threadsafe` returned for `task`: the callback's closure variable `destination`."""
    for callback, *_ in getattr(task, "_callbacks", None) or ():
        names = getattr(getattr(callback, "__code__", None), "co_freevars", ())
        for name, cell in zip(names, getattr(callback, "__closure__", None) or (), strict=False):
            if name == "destination" and isinstance(cell.cell_contents, concurrent.futures.Future):
                return cell.cell_contents
    return None
