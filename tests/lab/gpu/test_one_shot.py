"""The first command for a GPU machine: in a clean Python without a GPU, with wrong kernels, and with broken stages."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.gpu import one_shot
from lab.gpu.gpu_report import Figure, Run, StageReport
from lab.gpu.stages import INTERPRETED, LIMITS
from pipeline.paths import ROOT
from serving.devices import has_cuda_device

WITHOUT_GPU = pytest.mark.skipif(has_cuda_device(), reason="there is a GPU here")
NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@WITHOUT_GPU
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_clean_python_runs_every_stage_and_names_no_figure_a_gpu_s(clean_python, tmp_path):
    out = tmp_path / "out.json"
    command = [clean_python, "-m", "lab.gpu.one_shot", "--json", out, "--seconds", "600"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    run = Run.read(out)
    assert run.about["is_gpu"] is False
    assert [stage.name for stage in run.stages] == list(LIMITS)
    assert {stage.where for stage in run.stages} == {INTERPRETED}
    found = {stage.name: stage.verdict for stage in run.stages}
    checked = dict.fromkeys(("compile", "kernels", "bits", "model", "graphs"), "right")
    measured = dict.fromkeys(("machine", "passes", "baselines", "sweep"), "measured")
    assert found == {**checked, **measured, "ncu": "not run"}
    assert not any("no time" in reason for stage in run.stages for reason in stage.not_run)
    names = {figure.group.partition(",")[0] for figure in run.stages[1].figures}
    assert {"w4a16", "dense", "chosen", "attend_splits", "shrink", "add_rms_norm"} <= names, "they were compiled"
    assert "profile" in " ".join(run.stages[list(LIMITS).index("passes")].texts)
    assert INTERPRETED in done.stdout


@WITHOUT_GPU
@pytest.mark.slow
def test_a_gpu_that_is_required_and_not_seen_ends_the_command_at_once(tmp_path, clean_python):
    command = [clean_python, "-m", "lab.gpu.one_shot", "--json", tmp_path / "out.json", "--require-gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, Run.read(tmp_path / "out.json").stages) == (1, [])
    assert "torch sees no GPU" in done.stderr


def spoiled(place, factor):
    """A place whose 4-bit products are wrong in rows beside others."""
    from lab.gpu.place import Place

    class Spoiled(Place):
        def modes(self):
            yield self.kernels(half=True), "float16", True

        def kernels(self, **options):
            kernels = super().kernels(**options)
            multiply = kernels.awq_gemm

            def wrong(x, weight, out):
                multiply(x, weight, out)
                out[..., 1:, :] *= factor

            kernels.awq_gemm = wrong
            return kernels

    return Spoiled(place.has_gpu, place.deadline)


@NEEDS_TRITON
@pytest.mark.parametrize(
    ("check", "factor"),
    [
        ("check_errors", 1.01),
        pytest.param("check_errors", float("nan"), marks=pytest.mark.slow),
        pytest.param("check_bits", 1.01, marks=pytest.mark.slow),
    ],
)
def test_wrong_kernels_are_found_and_named(check, factor):
    from lab.gpu import kernel_checks
    from lab.gpu.place import Place

    report = StageReport("it", "here")
    place = spoiled(Place(has_cuda_device(), time.monotonic() + 3600), factor)
    getattr(kernel_checks, check)(place, report)
    report.status = "done"
    assert report.verdict == "WRONG"
    assert {figure.what.partition(" matmul")[0] for figure in report.figures if figure.is_wrong} == {"4-bit"}
    assert len(report.figures) > 5, "the others were checked too"


def test_memory_that_nothing_wrote_is_no_number():
    import torch

    from lab.gpu.place import poisoned_memory

    with poisoned_memory():
        assert all(torch.empty(3, dtype=dtype).isnan().all() for dtype in (torch.float16, torch.float32))


@pytest.mark.parametrize(
    ("value", "limit", "verdict"),
    [(1e-6, 1e-5, "right"), (1e-4, 1e-5, "WRONG"), (float("nan"), 1e-5, "WRONG"), (3.1, None, "measured")],
)
def test_a_figure_over_its_limit_or_no_number_is_wrong(tmp_path, value, limit, verdict):
    stage = StageReport("it", "here", status="done")
    stage.add("a group", "an error", value, limit=limit)
    Run({"machine": "a card"}, [stage]).write(tmp_path / "out.json")
    run = Run.read(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["stages"][0]["verdict"] == run.stages[0].verdict == verdict
    assert ("OVER" in run.table()) == (verdict == "WRONG")


def test_stages_after_a_broken_process_run_in_a_new_one_and_what_was_found_is_kept(tmp_path, monkeypatch):
    """The first process crashes in its second stage; the next one runs the third."""
    started = []

    def work(out: Path, seconds: float, names: list[str]):
        started.append(names)
        run = Run.read(out)
        for name in names:
            crashes = name == "kernels"
            run.stages.append(
                StageReport(name, "here", "running" if crashes else "done", figures=[Figure("a", "b", 1)])
            )
            run.write(out)
            if crashes:
                return -11, "illegal access"
        return 0, ""

    monkeypatch.setattr(one_shot, "run_worker", work)
    arguments = ["--json", str(tmp_path / "out.json"), "--only", "machine", "--only", "kernels", "--only", "bits"]
    assert one_shot.main(arguments) == 1
    assert started == [["machine", "kernels", "bits"], ["bits"]]
    run = Run.read(tmp_path / "out.json")
    assert [stage.verdict for stage in run.stages] == ["measured", "WRONG", "measured"]
    assert "illegal access" in run.stages[1].wrong[0]
    assert run.stages[1].figures, "what it had found before"


def test_pieces_of_another_version_or_that_do_not_load_are_named():
    from lab.gpu.image_pieces import load

    def faults(pins, ours):
        report = StageReport("image", "here", status="done")
        load(report, Path(sys.executable), pins, ours)
        return report.wrong

    assert faults({"numpy": "2.3.5"}, ("serving.types",)) == []
    other = faults({"numpy": "1.0"}, ("serving.types", "serving.no_such_module"))
    assert len(other) == 2
    assert "pinned is 1.0" in other[0]
    assert "serving.no_such_module: ModuleNotFoundError" in other[1]
    assert "no_such_package" in faults({"no_such_package": "1"}, ())[0]
