"""The second command for a GPU machine, in parts and as a whole in a clean Python; and what travels to that machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from lab.gpu.engine_answers import Variant, compare
from lab.gpu.engine_checkpoint import MISTRAL_7B, TINY, write_checkpoint
from lab.gpu.engine_process import ask_apart
from lab.gpu.engine_questions import NUM_COMMON, questions
from lab.gpu.gpu_report import StageReport
from lab.gpu.second_tests import INTERPRETED, read_log
from pipeline.paths import ROOT
from serving.kernels.reference import ReferenceKernels
from serving.models.config import parse_config
from serving.models.loader import load_with_kernels
from serving.text import Tokenizer

MOST_THAT_TRAVELS = 64 << 20  # bytes
WHEELS = ROOT / "lab/gpu/wheels.txt"
PASSED = "[gw0] [ 50%] PASSED tests/a.py::test_one\n[gw1] [100%] PASSED tests/a.py::test_two[x y]\n"
SLOWEST = "2.50s call     tests/a.py::test_one\n0.10s setup    tests/a.py::test_two[x y]\n"
FAILED = "[gw1] [ 66%] FAILED tests/a.py::test_three\n[gw1] [100%] ERROR tests/a.py::test_four\n"


def report():
    return StageReport("stage", "here", status="done")


def documented(start):
    """The command of docs/gpu.md that begins so, on one line."""
    text = (ROOT / "docs/gpu.md").read_text().replace("\\\n", " ")
    return next(line for line in text.splitlines() if line.startswith(start))


def test_a_random_checkpoint_has_the_tensors_of_its_configuration(tmp_path):
    write_checkpoint(tmp_path, TINY)
    model, tokenizer = load_with_kernels(tmp_path, ReferenceKernels()), Tokenizer.from_dir(tmp_path)
    assert model.config == parse_config(dict(TINY))
    assert 256 < tokenizer.vocab_size <= model.config.vocab_size
    asked = questions(tokenizer, 8, 6)
    assert tokenizer.decode(asked[0].prompt_token_ids).endswith("assistant\n")
    same = [a.prompt_token_ids == b.prompt_token_ids for a, b in zip(asked, questions(tokenizer, 1, 6), strict=True)]
    assert same == [i < NUM_COMMON for i in range(6)]


def test_the_large_shape_is_that_of_mistral_7b():
    config = parse_config(dict(MISTRAL_7B))
    layer = config.hidden_size * (2 * 4096 + 2 * 1024) + 3 * config.hidden_size * config.intermediate_size
    parameters = config.num_layers * layer + 2 * config.vocab_size * config.hidden_size
    assert parameters == pytest.approx(7.25e9, rel=0.01)


@pytest.mark.parametrize(
    ("text", "code", "verdict", "passed", "wrong"),
    [
        (PASSED + SLOWEST, 0, "right", 2, 0),
        (PASSED + FAILED, 1, "WRONG", 2, 2),
        (PASSED, None, "right", 2, 0),  # stopped
        (FAILED, None, "WRONG", 0, 2),
        ("ERROR collecting tests/a.py", 2, "WRONG", 0, 1),
        ("no tests ran", 5, "WRONG", 0, 1),
    ],
)
def test_the_log_of_the_tests_is_read_also_if_they_were_stopped(text, code, verdict, passed, wrong):
    found = report()
    read_log(found, text, code)
    assert (found.verdict, found.figures[0].value, len(found.wrong)) == (verdict, passed, wrong)
    assert bool(found.not_run) == (code is None)
    assert [f.what for f in found.figures[3:]] == (["tests/a.py::test_one"] if SLOWEST in text else [])


def answers_of(levels=(1, 8), **changed):
    same = {f"{level}-{i}": (i, 7) for level in levels for i in range(NUM_COMMON)}
    return same | {f"{level}-9": (level,) for level in levels} | changed


@pytest.mark.parametrize(
    ("other", "first_wrong"),
    [
        (answers_of(), None),
        (answers_of(levels=(1,)), None),  # no time was left for the rest
        (answers_of() | {"8-9": (1, 2)}, "drafts = other: the answers of 8-9 differ"),
        (answers_of() | {"8-0": (1, 2)}, "drafts = other: the answers of 8-0 differ"),
        ({}, "drafts = other: there are no answers of both"),
    ],
)
def test_answers_that_differ_between_engines_or_levels_are_wrong(other, first_wrong):
    found = report()
    compare(found, {"drafts": answers_of(), "other": other})
    assert found.wrong[:1] == ([] if first_wrong is None else [first_wrong])
    assert found.verdict == ("right" if first_wrong is None else "WRONG")


class Crash:
    """Ends the process that reads it."""

    def __reduce__(self):
        return os._exit, (3,)


def test_an_engine_that_takes_its_process_with_it_is_reported(tmp_path):
    with pytest.raises(RuntimeError, match="ended with code 3"):
        ask_apart(report(), {}, tmp_path, "cpu", Variant("a", {"speculation": Crash()}), time.monotonic() + 60)


def test_an_engine_that_does_not_start_is_reported(tmp_path):
    found = report()
    ask_apart(found, {}, tmp_path / "nothing", "cpu", Variant("a", {}), time.monotonic() + 60)
    assert "WeightsError" in found.wrong[0]


def test_the_wheels_that_travel_have_the_versions_of_the_requirements():
    def pins(*paths):
        text = "".join(path.read_text() for path in paths)
        return set(re.findall(r"^[a-z0-9-]+==\S+", text, re.MULTILINE))

    assert pins(WHEELS) <= pins(ROOT / "requirements/cpu.txt", ROOT / "requirements/dev.txt")


@pytest.mark.clone
def test_what_the_documented_command_leaves_is_small_enough_and_comes_back(tmp_path):
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("clone", "--quiet", "--no-checkout", ROOT, ".")
    subprocess.run(documented("git sparse-checkout set"), shell=True, cwd=tmp_path, check=True)
    git("checkout", "--quiet")
    tracked = [tmp_path / name for name in git("ls-files", "-z").split("\0")[:-1]]
    there = [path for path in tracked if os.path.lexists(path)]
    assert 0 < sum(path.lstat().st_size for path in there) < MOST_THAT_TRAVELS / 2, "wheels travel too"
    assert {"serving", "pipeline", "tests"} <= {path.relative_to(tmp_path).parts[0] for path in there}
    subprocess.run(documented("git sparse-checkout disable"), shell=True, cwd=tmp_path, check=True)
    assert all(map(os.path.lexists, tracked)) and git("status", "--porcelain") == ""


@pytest.fixture(scope="module")
def run_clean(clean_python, tmp_path_factory):
    """Run a command of the clean Python, which has the wheels that docs/gpu.md carries."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    download = documented("python3 -m pip download").replace("-d .whl", f"-d {wheels}")
    install = documented("python3 -m pip install").replace(".whl/", f"{wheels}/").replace("/tmp/site", str(site))
    for python, command in ((sys.executable, download), (clean_python, install)):
        subprocess.run(command.replace("python3", str(python), 1), shell=True, cwd=ROOT, check=True)
    assert sum(path.stat().st_size for path in wheels.iterdir()) < MOST_THAT_TRAVELS / 4
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    def run(*arguments):
        command = [clean_python, "-m", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env={**environment, "PYTHONPATH": str(site)}, capture_output=True, text=True
        )

    return run


@pytest.mark.index
@pytest.mark.slow
def test_the_gpu_tests_are_found_in_a_clean_python_and_no_other_file_is_imported(run_clean):
    done = run_clean("pytest", "-m", INTERPRETED, "--collect-only", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    files = set(re.findall(r"^tests/\S+\.py", done.stdout, re.MULTILINE))
    assert "tests/serving/engines/paged/test_triton_engine.py" in files
    kernels = (ROOT / "tests/serving/kernels/triton").glob("test_triton_*.py")
    assert {path.relative_to(ROOT).as_posix() for path in kernels} <= files


@pytest.mark.index
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_runs_in_a_clean_python(run_clean, tmp_path):
    out = tmp_path / "second.json"
    some = "tests/serving/kernels/triton/test_triton_elementwise.py"
    done = run_clean("lab.gpu.second", "--json", str(out), "--seconds", "600", "--tests", some)
    assert done.returncode == 0, done.stdout + done.stderr
    stages = {stage["name"]: stage for stage in json.loads(out.read_text())["stages"]}
    assert [stage["verdict"] for stage in stages.values()] == ["right", *["measured"] * 3, "right"]
    assert stages["tests"]["figures"][0]["value"] > 3, "tests passed"
    groups = {figure["group"] for figure in stages["engine, drafts"]["figures"]}
    assert {f"{level} at once" for level in (1, 8, 32)} <= groups
    compared = [figure["group"] for figure in stages["greedy answers"]["figures"]]
    assert "drafts = no drafts" in compared and "drafts, 1 at once = 32 at once" in compared
