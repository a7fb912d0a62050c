"""The rows of a batch run, their answers, and the interface of what answers them.

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
        number: from 0, in the order of the input; identifies the row.
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
        number: of the row.
        answer: the text that predict would return; None after an error.
        error: None if there is an answer.
        input_tokens: of the prompt; 0 if the engine was not asked.
        output_tokens: that were generated, also for an answer that was refused.
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
