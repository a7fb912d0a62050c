"""Answers rows with one or more engines; rows of an engine that dies are answered by a new one or by another.

A pool has the rows that no engine has: those not read yet, and those that came back from engines that died. A slot
keeps one engine busy, and starts a new one where it dies.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from pipeline.batch.errors import BatchError
from pipeline.batch.rows import Row, RowAnswer, Worker
from pipeline.weights.console import say
from serving.errors import EngineDeadError, ServingError

_PREPARATIONS: Final = 3  # in which a worker died, after which each of the rows is asked alone
_STARTS: Final = 3  # engines that may die one after another before they answer anything
_ALONE: Final = 2  # engines that a row must kill alone to become a failure
WINDOW: Final = 2_048  # rows that are sorted at once


class RowPool:
    """Gives each row to one worker at a time.

    A worker `enter`s before it takes rows, and `leave`s when it has answered them or has given them back.

    Args:
        window: number of rows to give at once, after so many have been given.
    """

    def __init__(self, rows: Iterator[Row], window: Callable[[int], int]) -> None:
        self._rows, self._window = rows, window
        self._num_read = 0
        self._is_read = False  # whether `rows` has ended
        self._back: deque[Row] = deque()
        self._suspects: deque[Row] = deque()
        self._preparations: Counter[int] = Counter()
        self._workers = 0
        self._reading = asyncio.Lock()
        self._changed = asyncio.Condition()
        self.is_stopped = False  # whether no further row may be started

    async def take(self) -> list[Row]:
        """The next rows; none if all have been given or no further row may be started."""
        async with self._reading:
            count = self._window(self._num_read)
            if self.is_stopped or self._is_read or self._back:
                given = 0 if self.is_stopped else min(count, len(self._back))
                return [self._back.popleft() for _ in range(given)]
            rows = await asyncio.to_thread(lambda: list(islice(self._rows, count)))
            self._num_read += len(rows)
            self._is_read = len(rows) < count
            return rows

    def take_suspect(self) -> Row | None:
        """A row that must be asked alone, if there is one."""
        return self._suspects.popleft() if self._suspects else None

    def give_back(self, rows: list[Row]) -> None:
        """Take rows back that were not started."""
        self._back.extend(rows)

    def give_back_unprepared(self, rows: list[Row]) -> None:
        """Take rows back whose worker died when it prepared them."""
        for row in rows:
            self._preparations[row.number] += 1
            (self._back if self._preparations[row.number] < _PREPARATIONS else self._suspects).append(row)

    def suspect(self, row: Row) -> None:
        """Take a row back whose worker died when it answered it."""
        self._suspects.append(row)

    def stop(self) -> None:
        """Start no further row; those that were started are asked again if they come back."""
        self.is_stopped = True

    def enter(self) -> None:
        """Count a worker that may have rows."""
        self._workers += 1

    async def leave(self) -> None:
        """Count a worker out that has no rows any more."""
        self._workers -= 1
        async with self._changed:
            self._changed.notify_all()

    async def until_rows(self) -> None:
        """Wait until there are rows, or all is done."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_rows or self.is_done)

    async def until_done(self) -> None:
        """Wait until all rows are answered."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_done)

    @property
    def is_done(self) -> bool:
        """Whether there are no rows here, and none at workers."""
        return not self._workers and not self._has_rows

    @property
    def _has_rows(self) -> bool:
        return bool(self._suspects) or not (self.is_stopped or (self._is_read and not self._back))


class EngineSlot:
    """Takes rows from the pool, has them answered by its worker, and gives back what its worker could not answer.

    Args:
        may_start: called before each row; after the first False no further row is started.
        concurrency: rows in flight.
    """

    def __init__(
        self,
        worker: Worker,
        pool: RowPool,
        answers: asyncio.Queue[RowAnswer],
        may_start: Callable[[], bool],
        concurrency: int,
    ) -> None:
        self._worker, self._pool, self._answers, self._may_start = worker, pool, answers, may_start
        self._concurrency = concurrency
        self._ready: deque[Row] = deque()
        self._coming: asyncio.Task[list[Row]] | None = None  # the window after `_ready`, being prepared
        self._taking = asyncio.Lock()
        self._death: EngineDeadError | None = EngineDeadError("not started")

    async def run(self) -> None:
        """Answer rows until all are answered, also those that other slots give back.

        Raises:
            EngineDeadError: several engines died one after another before they answered anything.
            ServingError, BatchError: the engine cannot be started.
        """
        while not self._pool.is_done:
            await self._start()
            self._pool.enter()
            try:
                await self._answer_suspects()
                await self._answer_windows()
            finally:
                await self._pool.leave()
            if self._death is None:
                await self._pool.until_rows()

    async def _start(self) -> None:
        """Start a new engine if the last one is dead."""
        for left in reversed(range(_STARTS)):
            if self._death is None:
                return
            try:
                await self._worker.start()
                self._death = None
            except EngineDeadError:
                if not left:
                    raise

    async def _answer_suspects(self) -> None:
        """Ask rows that were in flight when an engine died, one by one."""
        while self._death is None and (row := self._pool.take_suspect()) is not None:
            await self._answers.put(await self._ask_alone(row))

    async def _ask_alone(self, row: Row) -> RowAnswer:
        died: EngineDeadError | None = None
        for _ in range(_ALONE):
            try:
                await self._start()
            except BaseException:
                self._pool.suspect(row)
                raise
            try:
                await self._worker.prepare([row])
                return await self._worker.answer(row.number)
            except EngineDeadError as error:
                self._death = died = error
        return RowAnswer(row.number, None, f"the engine died when it answered this row alone: {died}")

    async def _answer_windows(self) -> None:
        if self._death is not None:
            return
        async with asyncio.TaskGroup() as group:
            self._coming = group.create_task(self._prepare())
            for _ in range(self._concurrency):
                group.create_task(self._answer_rows(group))
        self._pool.give_back([*self._ready, *(self._coming.result() if self._coming else ())])
        self._ready.clear()

    async def _answer_rows(self, group: asyncio.TaskGroup) -> None:
        """Answer one row after another, until there are none or the engine dies."""
        while (row := await self._next(group)) is not None:
            try:
                answer = await self._worker.answer(row.number)
            except EngineDeadError as error:
                self._death = error
                self._pool.suspect(row)
            else:
                await self._answers.put(answer)

    async def _next(self, group: asyncio.TaskGroup) -> Row | None:
        async with self._taking:
            while not self._ready and self._coming is not None and self._death is None:
                self._ready.extend(await self._coming)
                self._coming = group.create_task(self._prepare()) if self._ready else None
            if not self._ready or self._death is not None or self._pool.is_stopped:
                return None
            if not self._may_start():
                self._pool.stop()
                return None
            return self._ready.popleft()

    async def _prepare(self) -> list[Row]:
        """The next window; empty if there is none, or if the worker dies."""
        rows = await self._pool.take()
        try:
            return await self._worker.prepare(rows) if rows else []
        except EngineDeadError as error:
            self._death = error
            self._pool.give_back_unprepared(rows)
            return []


class EnginesRunner:
    """See `pipeline.batch.rows.Runner`.

    Prompts are sorted within windows of the input, so that the engine finds the beginning of most prompts in its KV
    cache. When an engine dies, the rows that were in flight are asked again one by one: one that kills two engines
    alone becomes a failure, and the others are answered.

    Args:
        workers: the engines, not started.
        concurrency: rows in flight in each.
        num_rows: number of rows that `run` will get. Near the end several engines get smaller windows, to end together.
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
