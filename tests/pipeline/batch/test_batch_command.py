"""scripts/batch as a user runs it, killed at random times, and on a real model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.batch.table import Table
from tasks.honeycomb.query import parse_query
from tests.cog.tiny_weights import make_tiny_weights
from tests.pipeline.batch.batch_command import Command
from tests.small_model import NEEDS_WEIGHTS, SETTINGS

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    (tmp_path / "tiny").mkdir()
    return Command(tmp_path, make_tiny_weights(tmp_path / "tiny") | {"ENGINE": "fake"})


def test_rows_are_answered_in_order_with_their_failures(command: Command) -> None:
    command.write(
        "in.jsonl",
        {"id": 1, "question": "count", "cols": ["a", "b"]},
        {"id": 2, "question": "count", "cols": "['a"},
        {"id": 3, "question": "count", "cols": "b, a"},
    )
    code, output = command.run("in.jsonl", "--out", "new/out.parquet", "--local", "--input", "nlq=question")
    assert code == 0, output
    assert "3 of 3 rows, 1 failed" in output
    found = [row.values for row in Table(command.folder / "new" / "out.parquet").rows()]
    assert [row["id"] for row in found] == [1, 2, 3]
    for row in (found[0], found[2]):
        parse_query(row["answer"], ["a", "b"])
        assert row["answer_input_tokens"] > 0
    assert found[1]["answer"] is None
    assert found[1]["answer_error"].startswith("cols: ")
    assert [path.name for path in (command.folder / "new").iterdir()] == ["out.parquet"], "nothing else is left"


@pytest.mark.timeout(1200)
def test_a_command_that_was_killed_continues(command: Command) -> None:
    """test_killed_runs.py kills more often."""
    command.write("in.jsonl", *({"id": i, "nlq": f"count {i % 7}", "cols": f"a{i % 5}, b"} for i in range(600)))
    arguments = ("in.jsonl", "--out", "out.jsonl", "--local")
    journal = command.folder / "out.jsonl.progress.jsonl"
    for _ in range(2):
        process = command.start(*arguments)
        size = journal.stat().st_size if journal.exists() else 0
        while process.poll() is None and (not journal.exists() or journal.stat().st_size <= size + 500):
            time.sleep(0.01)  # until it has written some answers
        assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()
    code, output = command.run(*arguments)
    assert code == 0, output
    found = [row.values for row in Table(command.folder / "out.jsonl").rows()]
    assert [row["id"] for row in found] == list(range(600))
    assert all(row["answer"] for row in found)
    assert not journal.exists()


def test_a_budget_stops_a_run_and_the_same_command_continues_it(command: Command) -> None:
    command.write("in.jsonl", *({"nlq": f"count {i}", "cols": "a, b"} for i in range(10)))
    arguments = ("in.jsonl", "--out", "out.csv", "--local", "--budget-rows", "6")
    code, output = command.run(*arguments)
    assert code == 0, output
    assert "Stopped after 6 rows; 4 rows are left" in output
    assert len(list(Table(command.folder / "out.csv").rows())) == 6
    code, output = command.run(*arguments, "--set", "max_tokens=300")
    assert (code, "another --set" in output) == (1, True), "a run does not change in the middle"
    assert command.run(*arguments)[0] == 0
    assert [row.values["nlq"] for row in Table(command.folder / "out.csv").rows()] == [f"count {i}" for i in range(10)]
    code, output = command.run(*arguments)
    assert (code, "exists; delete it" in output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("in.jsonl", "--out", "out.jsonl", "--engines", "2"), "add --ray"),
        (("none.jsonl", "--out", "out.jsonl", "--local"), "does not exist"),
        (("in.jsonl", "--out", "out.jsonl", "--local", "--input", "nlq"), "NAME=COLUMN"),
        (("in.jsonl", "--out", "out.jsonl", "--local", "--set", "max_tokens=0"), "minimum"),
    ],
)
def test_mistakes_are_reported_with_their_remedy(command: Command, arguments: tuple[str, ...], message: str) -> None:
    command.write("in.jsonl", {"nlq": "count", "cols": "a"})
    code, output = command.run(*arguments)
    assert (code, "Traceback" in output) == (1, False)
    assert message in output


@pytest.mark.weights
@NEEDS_WEIGHTS
def test_a_real_model_answers_as_predict_does(tmp_path: Path) -> None:
    """Sorted, in batches and with shared prefixes, the answers are those of one request alone."""
    cols = ["http.route, duration_ms, error", "name, status_code, duration_ms"]
    command = Command(tmp_path, {"ENGINE": "paged", **SETTINGS})
    command.write("in.jsonl", *({"nlq": f"p9{i} latency by {name}", "cols": cols[i % 2]}
                                for i, name in enumerate(["route", "name", "error", "status"])))  # fmt: skip
    code, output = command.run("in.jsonl", "--out", "out.jsonl", "--local")
    assert code == 0, output
    rows = [row.values for row in Table(tmp_path / "out.jsonl").rows()]
    alone = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "predict"), "-i", f"nlq={rows[1]['nlq']}", "-i", f"cols={cols[1]}"],
        capture_output=True,
        text=True,
        env={**os.environ, "ENGINE": "paged", **SETTINGS},
    )
    assert rows[1]["answer"] == alone.stdout.strip()
