"""Answers rows with one or more engines; rows of an engine that dies are answered by a new one or by another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Final

from pipeline.batch.engine_slot import EngineSlot
from pipeline.batch.engine_worker import Worker
from pipeline.batch.errors import BatchError
from pipeline.batch.row_pool import RowPool
from pipeline.batch.rows import Row, RowAnswer
from pipeline.weights.console import say
from serving.errors import ServingError

WINDOW: Final = 2_048  # rows that are sorted at once


class EnginesRunner:
    """See `pipeline.batch.rows.Runner`.

    Prompts are sorted within windows of the input, so that the engine finds the beginning of most prompts in its KV
    cache. When an engine dies, the rows that were in flight are asked again one by one: one that kills two engines
    alone becomes a failure, and the others are answered.

    Args:
        workers: the engines, not started.
        concurrency: rows in flight in each.
        num_rows: that `run` will get. Towards the end several engines get smaller windows, to finish together.
        window: rows that are sorted at once; each engine has up to two windows in memory.
    """

    def __init__(self, workers: Sequence[Worker], *, concurrency: int, num_rows: int, window: int = WINDOW) -> None:
        self._workers, self._concurrency = workers, concurrency
        self._num_rows, self._largest = num_rows, window

    async def run(self, rows: Iterator[Row], may_start: Callable[[], bool]) -> AsyncGenerator[RowAnswer, None]:
        """See `Runner.run`."""
        pool = RowPool(rows, self._window)
        answers: asyncio.Queue[RowAnswer] = asyncio.Queue(1)
        running = asyncio.create_task(self._run_all(pool, answers, may_start))
        try:
            while not running.done() or not answers.empty():
                coming = asyncio.ensure_future(answers.get())
                await asyncio.wait((coming, running), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                else:
                    yield coming.result()
            await running
        finally:
            running.cancel()
            await asyncio.wait((running,))

    def close(self) -> None:
        """End the engines."""
        for worker in self._workers:
            worker.close()

    async def _run_all(self, pool: RowPool, answers: asyncio.Queue[RowAnswer], may_start: Callable[[], bool]) -> None:
        """Run all slots until all rows are answered.

        Raises:
            BatchError: no engine is left.
        """
        slots = [EngineSlot(worker, pool, answers, may_start, self._concurrency) for worker in self._workers]
        done = asyncio.create_task(pool.until_done())
        running = {asyncio.create_task(slot.run()) for slot in slots}
        try:
            while not done.done():
                finished, running = await asyncio.wait((done, *running), return_when=asyncio.FIRST_COMPLETED)
                running.discard(done)
                _report([task for task in finished if task is not done], num_left=len(running))
        finally:
            for task in (done, *running):
                task.cancel()
            await asyncio.gather(done, *running, return_exceptions=True)

    def _window(self, num_given: int) -> int:
        if len(self._workers) == 1:
            return self._largest
        share = (self._num_rows - num_given) // (2 * len(self._workers))
        return max(self._concurrency, min(self._largest, share))


def _report(finished: Sequence[asyncio.Task[None]], num_left: int) -> None:
    """Say which engines have been given up, of the slots that finished.

    Raises:
        BatchError: there is no other engine.
    """
    for task in finished:
        error = task.exception()
        if error is None:
            continue
        if not isinstance(error, ServingError | BatchError):
            raise error
        if not num_left:
            raise BatchError(f"no engine works: {error}") from error
        say(f"One engine is given up ({error}); engines left: {num_left}")
