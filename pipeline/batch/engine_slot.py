"""Keeps one engine of a run busy, and starts a new one where it dies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from pipeline.batch.engine_worker import Worker
from pipeline.batch.row_pool import RowPool
from pipeline.batch.rows import Row, RowAnswer
from serving.errors import EngineDeadError

_STARTS: Final = 3  # engines that may die one after another before they answer anything
_ALONE: Final = 2  # engines that a row must kill alone to become a failure


class EngineSlot:
    """Takes rows from the pool, has them answered by its worker, and gives back what its worker could not answer.

    Args:
        worker: the engine.
        pool: where rows come from.
        answers: where answers go.
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
