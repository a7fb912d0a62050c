"""Answers all rows of a table that have no answer yet, within a budget, then writes the output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TextIO

from pipeline.batch.answer_journal import AnswerJournal, journal_of
from pipeline.batch.errors import BatchError
from pipeline.batch.output import Output
from pipeline.batch.rows import RowAnswer, Runner
from pipeline.batch.table import Survey, Table

_EVERY: Final = (0.5, 10.0)  # seconds between two lines on a terminal, and in a log


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend; None is no limit.

    Args:
        rows: number of rows.
        tokens: number of tokens of prompts and answers. Rows in flight are finished, so it is exceeded by up to theirs.
        minutes: time in minutes. Rows in flight are finished.
    """

    rows: int | None = None
    tokens: int | None = None
    minutes: float | None = None


class BudgetMeter:
    """What has been spent; time counts from here.

    Args:
        clock: gives the time in seconds.
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


class ProgressLine:
    """One line that is rewritten on a terminal; elsewhere, a line every ten seconds.

    Args:
        total: rows of the input.
        done: rows that had their answer before this run.
        clock: gives the time in seconds.
    """

    def __init__(self, total: int, done: int, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._before, self._out, self._clock = total, done, out, clock
        self._is_terminal = out.isatty()
        self._began = clock()
        self._shown = self._began
        self._answered = self._failed = 0

    def add(self, *, failed: bool) -> None:
        """Count one row, and show the line if it is time."""
        self._answered += 1
        self._failed += failed
        if self._clock() - self._shown >= _EVERY[0 if self._is_terminal else 1]:
            self._show()

    def finish(self) -> None:
        """Show the line for the last time."""
        self._show()
        if self._is_terminal:
            self._out.write("\n")

    def _show(self) -> None:
        self._shown = self._clock()
        self._out.write(f"\r\x1b[K{self}" if self._is_terminal else f"{self}\n")
        self._out.flush()

    def __str__(self) -> str:
        seconds = self._clock() - self._began
        rate = self._answered / seconds if seconds > 0 else 0.0
        done = self._before + self._answered
        left = f", {_duration((self._total - done) / rate)} left" if rate and done < self._total else ""
        return f"{done:,} of {self._total:,} rows, {self._failed:,} failed, {rate:.3g} rows/s{left}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a run did.

    Args:
        num_rows: number of rows of the input.
        num_left: rows without a result yet; 0 once the run is complete.
        num_failed: rows of this run that have an error instead of an answer.
        spent: the limit of the budget that ended the run, if one did.
    """

    num_rows: int
    num_left: int
    num_failed: int
    spent: str | None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A run that can start.

    Args:
        identity: what makes this run another one than others with the same output, by name.
        publish: called when the output has been written, before the answers so far are deleted.
    """

    table: Table
    survey: Survey
    output: Output
    identity: Mapping[str, Any]
    publish: Callable[[], None] = lambda: None


async def run_batch(plan: BatchPlan, start: Callable[[int], Runner], budget: Budget) -> BatchResult:
    """Answer the rows that have no answer yet.

    Every answer is kept at once in a journal beside the output, which is deleted once all rows are in the output. A
    run that was killed continues from there.

    Args:
        start: makes what answers so many rows; called only if there are rows left.

    Raises:
        BatchError: the output or the journal cannot be used, or the runner cannot continue.
    """
    output, kept = plan.output.path, journal_of(plan.output.path)
    if output.exists() and not kept.exists():
        raise BatchError(f"{output} exists; delete it, or give another --out")
    with AnswerJournal(kept, {"input": plan.survey.digests, **plan.identity}) as journal:
        meter = BudgetMeter(budget)
        failed = 0
        if left := plan.survey.num_rows - len(journal):
            failed = await _answer(plan, journal, start(left), meter)
        plan.output.write(
            (row.values, answer) for row in plan.table.rows() if (answer := journal.get(row.number)) is not None
        )
        plan.publish()
        left = plan.survey.num_rows - len(journal)
        if not left:
            journal.remove()
    return BatchResult(plan.survey.num_rows, left, failed, meter.spent if left else None)


async def _answer(plan: BatchPlan, journal: AnswerJournal, runner: Runner, meter: BudgetMeter) -> int:
    """Write answers to the journal; returns the number of failures."""
    failed = 0
    progress = ProgressLine(plan.survey.num_rows, len(journal), sys.stderr)
    rows = (row for row in plan.table.rows() if row.number not in journal)
    async with aclosing(runner.run(rows, meter.may_start)) as answers:
        async for answer in answers:
            journal.add(answer)
            meter.finish(answer)
            failed += answer.error is not None
            progress.add(failed=answer.error is not None)
    progress.finish()
    return failed
