"""scripts/gpu_check: what its rows would find, its exit code, and its short form on a machine without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.gpu_check import command, gpu_tests, image_pieces
from pipeline.gpu_check.check_rows import ROWS
from pipeline.gpu_check.finding import CheckRow, Figure, Finding
from pipeline.gpu_check.kernel_errors import kernel_errors
from pipeline.gpu_check.machine_rates import Rates
from pipeline.gpu_check.place import Place
from pipeline.gpu_check.row_bits import row_bits
from pipeline.paths import ROOT
from serving.devices import has_cuda_device
from tests.small_model import NEEDS_WEIGHTS, WEIGHTS

WITHOUT_GPU = pytest.mark.skipif(has_cuda_device(), reason="there is a GPU here")
NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@NEEDS_WEIGHTS
@NEEDS_TRITON
@WITHOUT_GPU
@pytest.mark.weights
@pytest.mark.timeout(900)  # seconds on an idle machine
def test_the_short_form_runs_without_a_gpu_and_names_what_it_did_not_run(tmp_path: Path) -> None:
    result, picture = tmp_path / "result.json", tmp_path / "roofline.png"
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "scripts/gpu_check", "--quick", "--weights", WEIGHTS),
            *("--json", result, "--picture", picture),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    found = {row["row"]: row for row in json.loads(result.read_text())["rows"]}
    assert list(found) == [row.name for row in ROWS]
    assert {name: row["verdict"] for name, row in found.items() if not row["figures"]} == dict.fromkeys(
        ("tests", "graphs", "vllm"), "not run"
    )
    assert all("GPU" in reason for row in found.values() for reason in row["not_run"])
    assert all(row["not_run"] for row in found.values()), "every row says what a GPU would add"
    assert found["kernels"]["verdict"] == found["bits"]["verdict"] == found["queries"]["verdict"] == "right"
    assert "this machine has no GPU" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def broken(place: Place) -> Finding:
    raise RuntimeError("the card is on [fire]")


@pytest.mark.parametrize(
    ("row", "code", "verdict"),
    [
        (lambda place: Finding((Figure("error", 1e-6, limit=1e-5),)), 0, "right"),
        (lambda place: Finding((Figure("error", 1e-4, limit=1e-5),)), 1, "wrong"),
        (lambda place: Finding((Figure("error", float("nan"), limit=1e-5),)), 1, "wrong"),
        (lambda place: Finding((Figure("a pass", 3.1, "ms"),), not_run=("on a GPU: there is none",)), 0, "measured"),
        (lambda place: Finding(not_run=("there is none",)), 0, "not run"),
        (lambda place: Finding((Figure("a pass", 3.1, "ms"),), wrong=("an answer",)), 1, "wrong"),
        (broken, 1, "wrong"),
    ],
)
def test_the_exit_code_says_whether_what_ran_was_wrong(tmp_path, monkeypatch, row, code, verdict):
    other = CheckRow("other", "the other", lambda place: Finding((Figure("a pass", 2.0),)))
    monkeypatch.setattr(command, "ROWS", (CheckRow("it", "it", row), other))
    file = tmp_path / "result.json"
    done = CliRunner().invoke(command.app, ["--weights", str(tmp_path), "--json", str(file)])
    assert done.exit_code == code, done.output
    rows = json.loads(file.read_text())["rows"]
    assert [found["verdict"] for found in rows] == [verdict, "measured"], "the other row still runs"
    assert rows[0]["wrong"] == [] or "fire" in rows[0]["wrong"][0] or rows[0]["wrong"] == ["an answer"]


def test_a_row_that_does_not_exist_is_named(tmp_path):
    done = CliRunner().invoke(command.app, ["--weights", str(tmp_path), "--only", "gpu"])
    assert done.exit_code == 2
    assert "kernels, bits" in " ".join(done.output.split())


class Spoiled(Place):
    """Its kernels give a wrong product to rows beside others."""

    def triton_kernels(self, *, half):
        kernels = super().triton_kernels(half=half)
        multiply = kernels.awq_gemm

        def spoiled(x, weight, out):
            multiply(x, weight, out)
            out[1:] *= 1.001

        kernels.awq_gemm = spoiled
        return kernels


@NEEDS_TRITON
@pytest.mark.parametrize("row", [kernel_errors, row_bits])
def test_wrong_kernels_are_found(tmp_path, row):
    finding = row(Spoiled(tmp_path, has_cuda_device(), True))
    assert finding.verdict == "wrong"
    assert {figure.what.partition(" matmul")[0] for figure in finding.figures if figure.is_wrong} == {"4-bit"}


@pytest.mark.parametrize(
    ("output", "code", "verdict", "wrong"),
    [
        ("..s\n3 passed, 1 skipped in 2.0s", 0, "measured", ()),
        ("FAILED tests/a.py::b - assert 1\n1 failed, 2 passed in 1s", 1, "wrong", ("FAILED tests/a.py::b - assert 1",)),
        ("ERROR tests/a.py\n1 error in 1s", 2, "wrong", ("ERROR tests/a.py",)),
    ],
)
def test_failed_tests_are_named(output, code, verdict, wrong):
    found = gpu_tests.found_in(output, code)
    assert (found.verdict, found.wrong) == (verdict, wrong)


def test_pytest_that_finds_no_test_is_wrong():
    assert gpu_tests.found_in("no tests ran in 0.1s", 5).verdict == "wrong"


def test_pieces_of_another_version_or_that_do_not_load_are_named():
    python = Path(sys.executable)
    right = image_pieces.load(python, {"numpy": "2.3.5"}, ("serving.types",))
    assert (right.verdict, right.figures[0].value) == ("measured", 2)
    other = image_pieces.load(python, {"numpy": "1.0"}, ("serving.types", "serving.no_such_module"))
    assert len(other.wrong) == 2
    assert "pinned is 1.0" in other.wrong[0]
    assert "serving.no_such_module: ModuleNotFoundError" in other.wrong[1]
    assert "no_such_package" in image_pieces.load(python, {"no_such_package": "1"}, ()).wrong[0]


def test_rates_are_the_two_limits_of_the_picture(tmp_path):
    from pipeline.gpu_check.finding import Point
    from pipeline.gpu_check.roofline import draw_roofline

    draw_roofline(tmp_path / "a" / "picture.svg", [Point("a", 1e9, 1e8, 0.01)], Rates(1e10, 1e12), "a card")
    text = (tmp_path / "a" / "picture.svg").read_text()
    assert "<svg" in text
