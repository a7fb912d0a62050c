"""The rows of a batch run, their answers, and the interfaces of what answers them: a runner, and its engines.

Another runner is another class with `run`; reading, resuming, budgets and output stay as they are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the input.

    Args:
        number: the row's place in the input, from 0, which identifies it.
        values: JSON values by column name; empty if the row cannot be read.
        problem: why it cannot be read, with its place; None if it can.
    """

    number: int
    values: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """The result of one row: an answer, or the reason why there is none.

    Args:
        answer: the text that predict would return; None after an error.
        error: None if there is an answer.
        input_tokens: number of tokens of the prompt; 0 if the engine was not asked.
        output_tokens: number of tokens that were generated, also for an answer that was refused.
    """

    number: int
    answer: str | None
    error: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0


class Runner(Protocol):
    """Answers rows."""

    def run(self, rows: Iterator[Row], may_start: Callable[[], bool]) -> AsyncGenerator[RowAnswer, None]:
        """Yield one answer for each row that was started, in the order in which they finish.

        Args:
            rows: those without an answer.
            may_start: called before each row; after the first False no further row is started.

        Raises:
            BatchError: the run cannot continue.
        """
        ...


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
