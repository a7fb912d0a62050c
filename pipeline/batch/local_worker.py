"""Answers rows with an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pipeline.batch.row_answer import PreparedRow, answer_row, prepare_row
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Row, RowAnswer
from serving.config import Settings
from serving.model import Model

HEALTH_SECONDS: Final = 60.0


class LocalWorker:
    """See `pipeline.batch.engine_worker.Worker`.

    Args:
        start: starts a model.
        inputs: which input comes from which column.
    """

    def __init__(self, start: Callable[[], Model], inputs: RowInputs) -> None:
        self._start, self._inputs = start, inputs
        self._model: Model | None = None
        self._prepared: dict[int, PreparedRow] = {}

    async def start(self) -> None:
        """See `Worker.start`."""
        self._prepared.clear()
        if self._model is None:
            self._model = self._start()  # in the main thread, as Cog's server does it
        else:
            self._model.close()
            self._model = await asyncio.to_thread(self._start)
        await self._model.engine.health(HEALTH_SECONDS)

    async def prepare(self, rows: list[Row]) -> list[Row]:
        """See `Worker.prepare`."""
        prepared = await asyncio.to_thread(self._prepare, rows)
        self._prepared.update((one.row.number, one) for one in prepared)
        return [one.row for one in prepared]

    async def answer(self, number: int) -> RowAnswer:
        """See `Worker.answer`."""
        assert self._model is not None, "started"
        # Forgotten, because the reader of the prompt has then read a part of an answer.
        return await answer_row(self._model, self._prepared.pop(number))

    def close(self) -> None:
        """See `Worker.close`."""
        if self._model is not None:
            self._model.close()

    def _prepare(self, rows: list[Row]) -> list[PreparedRow]:
        assert self._model is not None, "started"
        model = self._model
        return sorted((prepare_row(model, self._inputs, row) for row in rows), key=lambda one: one.order)


def start_model() -> Model:
    """The package's model."""
    return Model.load(Settings())
