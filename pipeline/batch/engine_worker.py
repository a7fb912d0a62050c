"""The interface of one engine that answers rows, in this process or elsewhere."""

from __future__ import annotations

from typing import Protocol

from pipeline.batch.rows import Row, RowAnswer


class Worker(Protocol):
    """One engine. Only `prepare` and `answer` are called while other calls are running."""

    async def start(self) -> None:
        """Start the engine, or a new one in place of the last one, whose prepared rows are forgotten.

        Raises:
            EngineDeadError: the engine died before it could generate a token.
            ServingError, BatchError: it cannot be started.
        """
        ...

    async def prepare(self, rows: list[Row]) -> list[Row]:
        """Make the prompts of rows; returns the rows sorted, so that equal beginnings of prompts meet.

        Raises:
            EngineDeadError: the worker died.
        """
        ...

    async def answer(self, number: int) -> RowAnswer:
        """The answer of a prepared row, by its number; the row must be prepared again before it is asked again.

        Raises:
            EngineDeadError: the engine or the worker died, which is perhaps not the row's fault.
        """
        ...

    def close(self) -> None:
        """End the engine, if there is one."""
        ...
