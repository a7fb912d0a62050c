"""Answers rows with one engine in this process, and starts a new engine where one dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from itertools import islice
from typing import Final

from pipeline.batch.errors import BatchError
from pipeline.batch.row_answer import PreparedRow, answer_row, prepare_row
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Row, RowAnswer
from pipeline.in_flight import in_flight
from serving.errors import EngineDeadError
from serving.predictor import TaskPredictor

WINDOW: Final = 2_048  # rows that are sorted at once
HEALTH_SECONDS: Final = 60.0


class LocalRunner:
    """See `pipeline.batch.rows.Runner`.

    Prompts are sorted within windows of the input, so that the engine finds the beginning of most prompts in its KV
    cache. When the engine dies, the rows that were in flight are asked again one by one: one that kills the engine
    alone becomes a failure, and the others are answered.

    Args:
        start: starts a model.
        inputs: which input comes from which column.
        concurrency: rows in flight.
        window: rows that are sorted at once; their prompts are in memory.
    """

    def __init__(
        self, start: Callable[[], TaskPredictor], inputs: RowInputs, *, concurrency: int, window: int = WINDOW
    ) -> None:
        self._start, self._inputs = start, inputs
        self._concurrency, self._window = concurrency, window
        self._model = start()
        self._died: EngineDeadError | None = None

    async def run(self, rows: Iterator[Row], may_start: Callable[[], bool]) -> AsyncGenerator[RowAnswer, None]:
        """See `Runner.run`."""
        with ThreadPoolExecutor(1, "prepare-rows") as executor:
            prepared = self._sorted(rows, executor)
            while True:
                suspects: list[PreparedRow] = []
                ready = self._until_death(prepared, may_start)
                async with aclosing(in_flight(self._ask, ready, self._concurrency)) as outcomes:
                    async for outcome in outcomes:
                        if isinstance(outcome, RowAnswer):
                            yield outcome
                        else:
                            suspects.append(outcome)
                if not suspects:
                    return
                for suspect in suspects:
                    yield await self._ask_alone(suspect.row)
                await self._restart()

    def close(self) -> None:
        """End the engine."""
        self._model.engine.close()

    async def _ask(self, row: PreparedRow) -> RowAnswer | PreparedRow:
        """The row's answer, or the row itself if the engine died."""
        try:
            return await answer_row(self._model, row)
        except EngineDeadError as error:
            self._died = error
            return row

    async def _ask_alone(self, row: Row) -> RowAnswer:
        await self._restart()
        # Prepared again, because the reader of the first prompt may have read a part of an answer.
        outcome = await self._ask(await asyncio.to_thread(prepare_row, self._model, self._inputs, row))
        if isinstance(outcome, RowAnswer):
            return outcome
        return RowAnswer(row.number, None, f"the engine died when it answered this row alone: {self._died}")

    async def _restart(self) -> None:
        """Start a new engine if the last one is dead.

        Raises:
            BatchError: the new engine cannot generate a token.
        """
        if self._died is None:
            return
        self._model.engine.close()
        self._model = await asyncio.to_thread(self._start)
        try:
            await self._model.engine.health(HEALTH_SECONDS)
        except EngineDeadError as error:
            raise BatchError(f"the engine died ({self._died}), and a new one does not work: {error}") from error
        self._died = None

    def _until_death(self, rows: Iterator[PreparedRow], may_start: Callable[[], bool]) -> Iterator[PreparedRow]:
        while self._died is None and may_start() and (row := next(rows, None)) is not None:
            yield row

    def _sorted(self, rows: Iterator[Row], executor: ThreadPoolExecutor) -> Iterator[PreparedRow]:
        """Prepared rows, sorted within windows; one window is prepared while the one before it is answered."""

        def prepare_window() -> list[PreparedRow]:
            window = [prepare_row(self._model, self._inputs, row) for row in islice(rows, self._window)]
            return sorted(window, key=lambda row: row.order)

        coming = executor.submit(prepare_window)
        while ready := coming.result():
            coming = executor.submit(prepare_window)
            yield from ready
