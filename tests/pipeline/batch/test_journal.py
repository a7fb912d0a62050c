"""Journal, budget and progress of a run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.batch.answer_journal import AnswerJournal
from pipeline.batch.errors import BatchError
from pipeline.batch.rows import RowAnswer
from pipeline.batch.run_batch import Budget, BudgetMeter, ProgressLine

IDENTITY = {"input": {"a.jsonl": "12"}, "--answer": "answer"}
ANSWERS = [RowAnswer(5, 'a\n"é"', None, 3, 4), RowAnswer(0, None, "wrong \ud800"), RowAnswer(3, "x")]


def write(path: Path) -> bytes:
    with AnswerJournal(path, IDENTITY) as journal:
        for answer in ANSWERS:
            journal.add(answer)
    return path.read_bytes()


def test_answers_are_there_again(tmp_path: Path) -> None:
    write(tmp_path / "journal")
    with AnswerJournal(tmp_path / "journal", IDENTITY) as journal:
        assert len(journal) == 3
        assert [number for number in range(6) if number in journal] == [0, 3, 5]
        assert [journal.get(answer.number) for answer in ANSWERS] == ANSWERS
        assert journal.get(1) is None


@given(cut=st.integers(0, 400))
def test_a_journal_cut_anywhere_loses_at_most_the_line_at_the_cut(tmp_path_factory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal"
    whole = write(path)
    kept = whole[:cut]
    path.write_bytes(kept)
    complete = max(0, kept.count(b"\n") - 1)
    with AnswerJournal(path, IDENTITY) as journal:
        assert len(journal) == complete
        for answer in ANSWERS[complete:]:
            journal.add(answer)
        assert [journal.get(answer.number) for answer in ANSWERS] == ANSWERS
    assert path.read_bytes() == whole


def test_another_run_s_journal_is_refused(tmp_path: Path) -> None:
    before = write(tmp_path / "journal")
    with pytest.raises(BatchError, match="another input; repeat"):
        AnswerJournal(tmp_path / "journal", IDENTITY | {"input": {"a.jsonl": "13"}})
    assert (tmp_path / "journal").read_bytes() == before


def test_two_processes_never_write_the_same_journal(tmp_path: Path) -> None:
    with AnswerJournal(tmp_path / "journal", IDENTITY), pytest.raises(BatchError, match="another process"):
        AnswerJournal(tmp_path / "journal", IDENTITY)


@pytest.mark.parametrize(
    ("budget", "started", "reason"),
    [
        (Budget(), 100, None),
        (Budget(rows=7), 7, "7 rows"),
        (Budget(tokens=50), 5, "50 tokens"),
        (Budget(minutes=0.5), 3, "0.5 minutes"),
        (Budget(rows=7, tokens=50), 5, "50 tokens"),
    ],
)
def test_a_budget_ends_a_run(budget: Budget, started: int, reason: str | None) -> None:
    """Each row takes 10 seconds and 10 tokens."""
    now = 0.0
    meter = BudgetMeter(budget, clock=lambda: now)
    count = 0
    while count < 100 and meter.may_start():
        count += 1
        now += 10
        meter.finish(RowAnswer(count, "x", None, 6, 4))
    assert (count, meter.spent) == (started, reason)


def test_progress_has_rate_and_time_left() -> None:
    now = 0.0
    out = io.StringIO()
    progress = ProgressLine(10_100, 100, out, clock=lambda: now)
    for i in range(1_000):
        now += 0.05
        progress.add(failed=i % 100 == 0)
    shown = out.getvalue().splitlines()
    assert len(shown) == 4 + (now >= 50), "a line every ten seconds where nobody looks"
    assert str(progress) == "1,100 of 10,100 rows, 10 failed, 20 rows/s, 7 min 30 s left"
