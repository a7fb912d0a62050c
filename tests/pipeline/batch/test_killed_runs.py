"""A run that is killed (SIGKILL) at random times answers every row exactly once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest

from pipeline.batch.output import Output
from pipeline.batch.rows import Row, RowAnswer
from pipeline.batch.run_batch import BatchPlan, Budget, run_batch
from pipeline.batch.table import Table

NUM_ROWS = 2_000


class ShuffledRunner:
    """Answers rows in another order than that of the input, about 10,000 a second, and notes each answer in a file."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    async def run(self, rows: Iterator[Row], may_start: Callable[[], bool]) -> AsyncGenerator[RowAnswer, None]:
        waiting = list(rows)
        random.Random(len(waiting)).shuffle(waiting)
        with self._notes.open("a") as notes:
            for row in waiting:
                time.sleep(1e-4)
                notes.write(f"{row.number}\n")
                notes.flush()
                yield RowAnswer(row.number, f"answer {row.values['id']}", row.problem, 1, 1)


def run(folder: Path) -> None:
    table = Table(folder / "in.jsonl")
    survey = table.survey()
    output = Output(folder / "out.jsonl", survey.types, "answer")
    plan = BatchPlan(table, survey, output, {})
    asyncio.run(run_batch(plan, lambda num_rows: ShuffledRunner(folder / "notes"), Budget()))


def run_in_a_child(folder: Path) -> int:
    """Start a run in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # progress
        run(folder)
        status = 0
    finally:
        os._exit(status)  # without what the tests do at their end


@pytest.mark.timeout(600)
def test_every_row_is_answered_exactly_once(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"id": f"row {i}"}) + "\n" for i in range(NUM_ROWS)))
    journal = tmp_path / "out.jsonl.progress.jsonl"
    rng = random.Random(11)
    killed = 0
    for _ in range(200):
        child = run_in_a_child(tmp_path)
        size = journal.stat().st_size if journal.exists() else 0
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if journal.exists() and journal.stat().st_size > size + rng.randrange(8_000):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                killed += 1
                break
            time.sleep(1e-3)
        if (tmp_path / "out.jsonl").exists() and not journal.exists():
            break
    assert killed >= 10
    found = [row.values for row in Table(tmp_path / "out.jsonl").rows()]
    assert [row["id"] for row in found] == [f"row {i}" for i in range(NUM_ROWS)]
    assert [row["answer"] for row in found] == [f"answer row {i}" for i in range(NUM_ROWS)]
    # What a kill can lose is the one answer that was not written yet.
    assert len((tmp_path / "notes").read_text().split()) <= NUM_ROWS + killed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "notes", "out.jsonl"]
