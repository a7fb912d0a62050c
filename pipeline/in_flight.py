"""Runs one coroutine for each item of a list, a limited number of them at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_flight(
    ask: Callable[[Item], Coroutine[Any, Any, Result]], items: Iterable[Item], concurrency: int
) -> AsyncGenerator[Result, None]:
    """Yield results in the order in which they finish.

    The next item is taken only when it can start, so an iterator that stops early ends the run after the coroutines
    that have started. The first exception cancels the others.
    """
    waiting = iter(items)
    running: set[asyncio.Task[Result]] = set()
    try:
        while True:
            while len(running) < concurrency and (item := next(waiting, None)) is not None:
                running.add(asyncio.create_task(ask(item)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()


def blocking(results: AsyncGenerator[Result, None]) -> Iterator[Result]:
    """A synchronous iterator over an asynchronous one; its event loop runs only while an item is awaited."""
    with asyncio.Runner() as runner:

        async def next_result() -> Result | None:
            return await anext(results, None)

        while (result := runner.run(next_result())) is not None:
            yield result
