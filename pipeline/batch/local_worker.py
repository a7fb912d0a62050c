"""Answers rows with an engine in this process, which may be that of a Ray actor, in the same way as predict."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pipeline.batch.errors import BatchError
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Row, RowAnswer
from pipeline.package.command_inputs import BadInputError
from pipeline.paths import ROOT
from pipeline.weights.digest import sha256
from serving.config import Settings
from serving.errors import EngineDeadError, ServingError
from serving.model import ADAPTER, Model
from tasks.errors import TaskError
from tasks.task import Prompt

HEALTH_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A row whose prompt is known; or `problem` says why it has none. A prompt can be answered only once."""

    row: Row
    prompt: Prompt | None
    adapter: str | None = None
    problem: str | None = None

    @property
    def order(self) -> tuple[str, tuple[int, ...]]:
        """Key by which rows with equal beginnings of prompts come one after another."""
        return self.adapter or "", () if self.prompt is None else self.prompt.token_ids


def prepare_row(model: Model, inputs: RowInputs, row: Row) -> PreparedRow:
    """Check a row's inputs and make its prompt."""
    if row.problem is not None:
        return PreparedRow(row, None, problem=row.problem)
    try:
        given = inputs.of(row)
        return PreparedRow(row, model.prepare(given), given.get(ADAPTER) or None)
    except BadInputError as error:
        return PreparedRow(row, None, problem=str(error))
    except Exception as error:  # whatever is wrong with one row must not stop the others
        return PreparedRow(row, None, problem=_reason(error))


async def answer_row(model: Model, prepared: PreparedRow) -> RowAnswer:
    """The answer of a row, or the reason why there is none.

    Raises:
        EngineDeadError: the engine failed, which is perhaps not the row's fault.
    """
    number = prepared.row.number
    if prepared.prompt is None:
        return RowAnswer(number, None, prepared.problem)
    answer, error = model.answer_prompt(prepared.prompt, prepared.adapter), None
    try:
        await answer
    except EngineDeadError:
        raise
    except Exception as problem:
        error = _reason(problem)
    tokens = (int(answer.metrics.get(name, 0)) for name in ("input_token_count", "output_token_count"))
    return RowAnswer(number, answer.text if error is None else None, error, *tokens)


def _reason(error: Exception) -> str:
    if isinstance(error, ServingError | TaskError):
        return str(error)
    return f"internal error: {error!r}"


class LocalWorker:
    """See `pipeline.batch.rows.Worker`."""

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
    """Load the package's model."""
    return Model.load(Settings())


class EngineActor:
    """One engine in a process of its own; Ray calls its methods, several at the same time.

    Args:
        settings: environment variables of the engine.
        lock: SHA-256 of the driver's lock of weights.
    """

    def __init__(self, settings: Mapping[str, str], lock: str, inputs: RowInputs) -> None:
        self._settings, self._lock = settings, lock
        self._worker = LocalWorker(start_model, inputs)

    async def start(self) -> None:
        """Start the engine.

        Raises:
            EngineDeadError: it does not generate a token.
            ServingError: it cannot be started.
            BatchError: this machine has other weights than the driver.
        """
        os.environ.update(self._settings)
        os.chdir(ROOT)  # paths of the weights in the settings are relative to it
        if sha256(path := Settings().weights_lock) != self._lock:
            raise BatchError(f"{path.absolute()} on {os.uname().nodename} is another lock than the driver's")
        await self._worker.start()

    async def prepare(self, rows: list[Row]) -> list[int]:
        """Make prompts; returns the numbers of the rows in the order in which they should be asked."""
        return [row.number for row in await self._worker.prepare(rows)]

    async def answer(self, number: int) -> RowAnswer:
        """The answer of a prepared row.

        Raises:
            EngineDeadError: the engine died.
        """
        return await self._worker.answer(number)

    async def close(self) -> None:
        """End the engine, with processes that it has started."""
        self._worker.close()
