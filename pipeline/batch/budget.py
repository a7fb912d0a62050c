"""Limits how much one run does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.batch.rows import RowAnswer


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend; None is no limit.

    Args:
        rows: number of rows.
        tokens: of prompts and answers together. Rows in flight are finished, so it is exceeded by up to their tokens.
        minutes: of time. Rows in flight are finished.
    """

    rows: int | None = None
    tokens: int | None = None
    minutes: float | None = None


class BudgetMeter:
    """What has been spent; time counts from here.

    Args:
        budget: the limits.
        clock: seconds.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self.spent: str | None = None  # the limit that was reached
        self._budget, self._clock = budget, clock
        self._rows = self._tokens = 0
        self._began = clock()

    def may_start(self) -> bool:
        """Whether one more row may be started, which then counts."""
        self.spent = self.spent or self._reached()
        if self.spent is None:
            self._rows += 1
        return self.spent is None

    def finish(self, answer: RowAnswer) -> None:
        """Count the tokens of an answer."""
        self._tokens += answer.input_tokens + answer.output_tokens

    def _reached(self) -> str | None:
        budget = self._budget
        if budget.rows is not None and self._rows >= budget.rows:
            return f"{budget.rows:,} rows"
        if budget.tokens is not None and self._tokens >= budget.tokens:
            return f"{budget.tokens:,} tokens"
        if budget.minutes is not None and self._clock() - self._began >= 60 * budget.minutes:
            return f"{budget.minutes:g} minutes"
        return None
