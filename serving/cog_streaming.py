"""Live streaming, concurrent predictions and cancel, all at once, under Cog's server.

Owns: the one shape of `predict` that has all three, and the hook into Cog that cancel needs.
Knows nothing of engines or of what is streamed.

Cog drains an async generator into a list before it sends anything, and runs a sync generator one
at a time. But it iterates, chunk by chunk and each in a thread of its own, a sync generator that
an `async def` *returns*. So an asyncio task fills a queue and that generator empties it.

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
    """A sync generator over `chunks`, which run on the loop of the calling coroutine, from now on.

    An error of `chunks` comes out of the generator, also when its text has the word "cancelled":
    Cog reports an error of a *coroutine* with that word as a cancelled prediction. Metrics, logs
    and prints inside `chunks` belong to this prediction, since its task inherits the context.
    When Cog cancels, `chunks` are closed first, then the generator ends.
    """
    feed = _Feed(chunks)
    on_cancel(feed.cancel)
    return feed.drain()


class _Feed:
    """Chunks on their way from the event loop to the thread that Cog iterates in."""

    def __init__(self, chunks: AsyncGenerator[str]) -> None:
        self._queue: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._fill(chunks))
        # A callback, because a task that is cancelled before its first step never runs its `finally`.
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Close the chunks; from any thread, at any time."""
        self._loop.call_soon_threadsafe(self._task.cancel)

    def drain(self) -> Generator[str]:
        """Chunks in order, then the error that ended them, if any."""
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.cancel()  # Cog dropped the generator; does nothing when the task is done

    async def _fill(self, chunks: AsyncGenerator[str]) -> None:
        async with aclosing(chunks):
            async for chunk in chunks:
                self._queue.put(chunk)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._queue.put(CancelationException("canceled") if task.cancelled() else task.exception())


def on_cancel(callback: Callable[[], None]) -> bool:
    """Call `callback`, from any thread, when Cog cancels the prediction of the current task.

    Cog cancels by `cancel()` of the future that `asyncio.run_coroutine_threadsafe` gave it, which
    does nothing once the coroutine has returned its generator; so that method is wrapped.

    Returns:
        False when that future cannot be found, because Cog or asyncio changed: then there is no
        cancel, and all else works.
    """
    future = _future_of(asyncio.current_task())
    if future is None:
        return False
    cancel = future.cancel

    def cancel_and_tell() -> bool:
        callback()
        return cancel()

    future.cancel = cancel_and_tell  # type: ignore[method-assign]
    if future.cancelled():  # it came before we could listen
        callback()
    return True


def _future_of(task: asyncio.Task[object] | None) -> concurrent.futures.Future[object] | None:
    """What `run_coroutine_threadsafe` returned for `task`, whose callback closes over it as `destination`."""
    for callback, *_ in getattr(task, "_callbacks", None) or ():
        names = getattr(getattr(callback, "__code__", None), "co_freevars", ())
        for name, cell in zip(names, getattr(callback, "__closure__", None) or (), strict=False):
            if name == "destination" and isinstance(cell.cell_contents, concurrent.futures.Future):
                return cell.cell_contents
    return None
