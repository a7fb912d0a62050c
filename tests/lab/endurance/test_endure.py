"""scripts/dev/endure: what its rows would find, its exit code, and all rows with tiny amounts on the real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.endurance import command
from lab.endurance.command import ROWS
from lab.endurance.row import QUICK, Amounts, Check, Result, Row, verdict
from lab.endurance.stage import Stage
from lab.endurance.workload import has_foreign_mark, marked, quantile
from pipeline.paths import ROOT
from tests.small_model import NEEDS_WEIGHTS


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.weights
@pytest.mark.timeout(900)  # under a minute on an idle machine
def test_every_row_passes_with_tiny_amounts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "dev" / "endure", "--quick", "--json", tmp_path / "result.json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (tmp_path / "result.json").exists(), done.stderr[-6000:]
    result = json.loads((tmp_path / "result.json").read_text())
    failed = [row for row in result["rows"] if row["verdict"] == "failed"]
    assert (done.returncode, failed) == (0, []), done.stderr[-6000:]
    assert [row["row"] for row in result["rows"]] == [row.title for row in ROWS]
    assert {row["verdict"] for row in result["rows"]} == {"passed"}
    assert all(check["figure"] is not None for row in result["rows"] for check in row["checks"] if check["passed"])
    assert result["versions"]["cog"] and result["command"].startswith("scripts/dev/endure --quick")


def broken(stage: Stage, amounts: Amounts) -> Result:
    raise RuntimeError("the disk is on fire")


@NEEDS_WEIGHTS
@pytest.mark.parametrize(
    ("row", "code"),
    [
        (lambda stage, amounts: Result((Check("lost", 0, 0),)), 0),
        (lambda stage, amounts: Result((Check("lost", 1, 0),), losses=("one of them",)), 1),
        (lambda stage, amounts: Result((Check("nothing measured", float("nan"), 0),)), 1),
        (broken, 1),
    ],
)
def test_the_exit_code_says_whether_a_row_failed_and_the_others_still_run(tmp_path, monkeypatch, row, code):
    rows = (Row("it", "it", row), Row("other", "the other", lambda stage, amounts: Result((Check("lost", 0, 0),))))
    monkeypatch.setattr(command, "ROWS", rows)
    file = tmp_path / "result.json"
    assert CliRunner().invoke(command.app, ["--quick", "--json", str(file)]).exit_code == code
    assert [row["verdict"] for row in json.loads(file.read_text())["rows"]][1] == "passed"


def test_an_unknown_row_is_refused_with_the_names_of_all():
    done = CliRunner().invoke(command.app, ["--only", "nothing"])
    assert done.exit_code == 2
    assert "nothing is no row" in done.output


def test_limits_on_time_count_only_in_a_whole_run():
    result = Result((Check("slow", 9, 5, "s", is_time=True),))
    assert verdict(result, QUICK) == "passed"
    assert verdict(result, Amounts()) == "failed"


def test_text_of_another_question_is_found_and_a_cut_mark_is_not():
    assert has_foreign_mark('{"breakdowns": ["zq12x.name_0"]}', 1)
    assert not has_foreign_mark('{"breakdowns": ["zq1x.name_0"], "filters": [{"column": "zq', 1)
    assert "zq1x." in marked(1)["nlq"]


def test_a_quantile_is_a_value_that_was_seen():
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(range(100), 0.99) == 99
