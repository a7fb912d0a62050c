"""scripts/improve, from corrections to a version that can be promoted, on a tiny random base."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.package.version import read_version
from pipeline.paths import ROOT
from pipeline.prepare.command import REFUSED
from pipeline.prepare.run import work_path
from pipeline.train.kept import Kept, find_kept, find_kept_of_adapter, keep, prepared_from
from serving.weights import verify
from serving.weights.adapter_files import adapter_digest
from tests.pipeline.prepare.sources import environment, make_sources, prepare

pytestmark = [pytest.mark.awq, pytest.mark.slow, pytest.mark.timeout(3000)]

TOWNS = ["York", "Bath", "Leeds", "Derby", "Truro", "Wells"]
NOTHING_LOST = "100"  # points: a random base knows nothing, so that it cannot be judged by old examples


def command(folder: Path, out: str, corrections: str, *more: str) -> list[str]:
    words = ["--weights", folder / "towns", "--out", folder / out, "--corrections", folder / corrections, *more]
    return [str(ROOT / "scripts" / "improve"), "--minutes", "0.5", *map(str, words)]


def improve(folder: Path, out: str, *more: str) -> subprocess.Popen[str]:
    pipe, words = subprocess.PIPE, command(folder, out, "corrections.jsonl", *more)
    return subprocess.Popen(words, env=environment(), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a random base and a random adapter, and what scripts/train would have kept of it."""
    folder = tmp_path_factory.mktemp("improve")
    make_sources(folder)
    # The limits are for models that know something.
    limits = ("--limit-weights", "9", "--limit-logits", "99", "--limit-score", "100")
    done = prepare(folder, folder / "towns", "--cases", folder / "cases.jsonl", *limits, "--no-drafter", "--keep")
    assert done.returncode == 0, done.stderr[-4000:]
    data = folder / "data"
    data.mkdir()
    cases = (folder / "cases.jsonl").read_text().splitlines(keepends=True)
    for part, its in {"train": cases[:30], "validation": cases[30:35], "test": cases[35:]}.items():
        (data / f"{part}.jsonl").write_text("".join(its))
    keep(folder / "towns", Kept(str(folder / "base"), *prepared_from(folder / "towns"), data))
    lines: list[dict[str, object]] = [
        {"input": {"text": f"{town} {n}"}, "output": {"city": "x"}} for n, town in enumerate(TOWNS * 4)
    ]
    lines.append({"input": {"text": "I live."}, "output": {"city": "y"}, "kind": "example"})
    (folder / "corrections.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_corrections_become_a_version_and_a_killed_run_goes_on(folder: Path) -> None:
    first = improve(folder, "towns-2", "--limit", NOTHING_LOST)
    state = folder / ".towns-2.improve" / "state.json"
    while not (state.exists() and "done" in json.loads(state.read_text()).get("adapter", "")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    second = improve(folder, "towns-2", "--limit", NOTHING_LOST)
    said, problems = second.communicate(timeout=2500)
    assert "adapter: done before" in problems, problems[-4000:]
    assert "| held-out corrections" in said and "examples of the playground" in said, problems[-4000:]
    if second.returncode == REFUSED:  # half a minute may teach a random model nothing
        assert "REFUSED: no candidate is better" in problems and not (folder / "towns-2").exists()
        return
    assert second.returncode == 0, problems[-4000:]
    verify(folder / "towns-2", folder / "towns-2.lock")
    record = read_version(folder / "towns-2")
    assert record is not None and record.parent == "towns"
    assert record.figures["held-out corrections"].after > record.figures["held-out corrections"].before
    assert "## Right before, not now" in (folder / "towns-2.card.md").read_text()
    kept = find_kept(folder, folder / "towns-2")
    assert kept.search is not None and kept.data is not None and (kept.data / "corrections.jsonl").is_file()
    assert not list(folder.glob(".towns-2.*")) and work_path(folder / "towns-2").name == ".towns-2.prepare"


def test_corrections_of_an_adapter_on_demand_improve_the_adapter(folder: Path) -> None:
    """The adapter is served unmerged over a quantized checkpoint; nothing of it was kept."""
    adapter = folder / "mine"
    shutil.copytree(folder / "adapter", adapter)
    shutil.copyfile(folder / "towns" / "task.json", adapter / "task.json")
    lines = [json.loads(line) for line in (folder / "corrections.jsonl").read_text().splitlines()]
    for line in lines:
        line["input"]["adapter"] = "towns"
    (folder / "of-adapter.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--adapter", adapter, "--name", "towns", "--base", folder / "base", "--replay", folder / "cases.jsonl")
    words = command(folder, "mine-2", "of-adapter.jsonl", *map(str, options), "--limit", NOTHING_LOST)
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
    assert "| held-out corrections" in done.stdout, done.stderr[-4000:]
    if done.returncode == REFUSED:  # half a minute may teach a random model nothing
        assert "mine stays as it is" in done.stderr and not (folder / "mine-2").exists()
        return
    assert done.returncode == 0, done.stderr[-4000:]
    record = read_version(folder / "mine-2")
    assert record is not None and record.parent == "mine"
    assert adapter_digest(folder / "mine-2") in done.stdout
    kept = find_kept_of_adapter(folder / "mine-2", folder / "towns", None)
    assert kept.base == str(folder / "base") and kept.data is not None
    assert not list(folder.glob(".mine-2.*"))


def test_few_corrections_are_refused_before_anything_is_trained(folder: Path) -> None:
    few = (folder / "corrections.jsonl").read_text().splitlines()[:9]
    (folder / "few.jsonl").write_text("".join(f"{line}\n" for line in few))
    words = command(folder, "towns-3", "few.jsonl")
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
    assert done.returncode == 1 and "10 are needed" in done.stderr and "Traceback" not in done.stderr
    assert not (folder / "towns-3").exists()
