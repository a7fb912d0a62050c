"""Answers all rows of a table that have no answer yet, then writes the output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.batch.answer_journal import AnswerJournal, journal_of
from pipeline.batch.budget import Budget, BudgetMeter
from pipeline.batch.errors import BatchError
from pipeline.batch.output import Output
from pipeline.batch.progress_line import ProgressLine
from pipeline.batch.rows import Runner
from pipeline.batch.table import Survey, Table


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a run did.

    Args:
        num_rows: of the input.
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
        table: the input.
        survey: of the table.
        output: where results go.
        identity: what makes this run another one than others with the same output, by name.
        publish: called when the output has been written, before the answers so far are deleted.
    """

    table: Table
    survey: Survey
    output: Output
    identity: Mapping[str, Any]
    publish: Callable[[], None] = lambda: None

    @property
    def journal(self) -> Path:
        """File of the answers so far."""
        return journal_of(self.output.path)

    def check(self) -> None:
        """Whether the output may be written.

        Raises:
            BatchError: it is there, and not of a run that can continue.
        """
        if self.output.path.exists() and not self.journal.exists():
            raise BatchError(f"{self.output.path} exists; delete it, or give another --out")


async def run_batch(plan: BatchPlan, start: Callable[[int], Runner], budget: Budget) -> BatchResult:
    """Answer the rows that have no answer yet.

    Every answer is kept at once in a journal beside the output, which is deleted once all rows are in the output. A
    run that was killed continues from there.

    Args:
        plan: what to answer.
        start: makes what answers so many rows; called only if there are rows left.
        budget: of this run.

    Raises:
        BatchError: the output or the journal cannot be used, or the runner cannot continue.
    """
    plan.check()
    identity = {"input": plan.survey.digests, **plan.identity}
    with AnswerJournal(plan.journal, identity) as journal:
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
