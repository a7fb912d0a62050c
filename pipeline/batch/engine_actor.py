"""What runs in a Ray actor: one engine, with the package of the machine that the actor is on."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pipeline.batch.errors import BatchError
from pipeline.batch.local_worker import LocalWorker, start_model
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Row, RowAnswer
from pipeline.paths import ROOT
from pipeline.weights.digest import sha256
from serving.config import Settings


class EngineActor:
    """One engine in a process of its own; Ray calls its methods, several at the same time.

    Args:
        settings: environment variables of the engine.
        lock: SHA-256 of the driver's lock of weights.
        inputs: which input comes from which column.
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
