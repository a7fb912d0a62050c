"""scripts/train, from a file of examples to a checkpoint with its lock and card, on a tiny random base."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.paths import ROOT
from pipeline.train.kept import find_kept
from pipeline.train.record import STATE
from serving.weights import verify
from tests.pipeline.prepare.sources import environment, make_sources

pytestmark = [pytest.mark.awq, pytest.mark.slow, pytest.mark.timeout(1800)]

TOWNS = ["York", "Bath", "Leeds", "Derby", "Truro", "Wells"]


def train(folder: Path) -> subprocess.Popen[str]:
    words = [ROOT / "scripts" / "train", folder / "examples.jsonl", "--out", folder / "towns"]
    words += ["--base", folder / "base", "--minutes", "0.5"]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=environment(), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    make_sources(folder)
    lines = [
        {"input": f"Person {n} lives in {town} since {1900 + n}.", "output": {"city": town, "since": 1900 + n}}
        for n, town in enumerate(TOWNS * 12)
    ]
    (folder / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_examples_become_a_locked_checkpoint_with_a_card_and_a_killed_run_goes_on(folder: Path) -> None:
    first = train(folder)
    state = folder / ".towns.train" / "state.json"
    while not (state.exists() and "done" in json.loads(state.read_text()).get("adapter", "")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    stopped = train(folder)
    assert stopped.stderr is not None
    assert any("] search: scripts/quantize_awq" in line for line in stopped.stderr)
    assert stopped.stderr.readline()  # of the search, which runs now
    os.kill(stopped.pid, signal.SIGTERM)
    assert "run the same command to go on" in stopped.communicate()[1] and stopped.returncode == 130
    second = train(folder)
    said, problems = second.communicate(timeout=1500)
    assert second.returncode == 0, problems[-4000:]
    assert "adapter: done before" in problems
    assert "The task is schema, because all 72 outputs are JSON objects." in said
    verify(folder / "towns", folder / "towns.lock")
    card = (folder / "towns.card.md").read_text()
    for text in (
        "| exact |",
        "base, untrained",
        "F1 by field",
        "`city`",
        "passes",
        "## Confidence",
        "Not measured: the probabilities of fields are known for ",
    ):
        assert text in card, card
    assert "(towns.card.png)" in card and (folder / "towns.card.png").read_bytes().startswith(b"\x89PNG")
    assert "scripts/new_package ../towns" in said
    schema = json.loads((folder / "towns.schema.json").read_text())
    assert schema["required"] == ["city", "since"]
    assert not list(folder.glob(".towns.*"))
    kept = find_kept(folder, folder / "towns")
    assert kept.base == str(folder / "base") and kept.search is not None and kept.data is not None
    assert (kept.adapter / "adapter_model.safetensors").is_file() and not (kept.adapter / STATE).exists()
    assert {path.name for path in kept.data.iterdir()} >= {"train.jsonl", "validation.jsonl", "test.jsonl", "task.json"}


def test_broken_lines_are_named_before_anything_is_trained(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(
        '{"input": "a", "output": {"n": 1}}\n{"input": "b"}\n{"input": 1, "output": 2}\n'
    )
    words = [ROOT / "scripts" / "train", tmp_path / "bad.jsonl", "--out", tmp_path / "x", "--base", folder / "base"]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert "bad.jsonl:2: output is missing" in done.stderr and "bad.jsonl:3: input is a number" in done.stderr
    assert "Traceback" not in done.stderr
