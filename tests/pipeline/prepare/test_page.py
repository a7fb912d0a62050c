"""The example of docs/prepare.md, from the default base to a served answer, by the page's own commands.

They run in a copy of the repository, on the default base cut to two layers and on a few of the examples, because all
of it takes minutes. So the answers are valid and meaningless, and the page's figures are not checked.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from lab.endurance.cog_process import CogServer
from pipeline.environment.enter import installed_environment
from pipeline.paths import ROOT
from pipeline.prepare.record import read_record
from pipeline.weights.atomic import write_json
from pipeline.weights.safetensors_io import SafetensorsCheckpoint, write_safetensors
from serving.weights import verify
from tests.cog.asking import post
from tests.pipeline.weights.checkpoint_fixtures import Arrays

pytestmark = [pytest.mark.weights, pytest.mark.awq, pytest.mark.server, pytest.mark.timeout(1200)]

PAGE = (ROOT / "docs" / "prepare.md").read_text("utf-8").partition("## An example\n")[2]
BLOCKS = re.findall(r"^```\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
LAYERS = 2
LINES = {"train": 8, "validation": 2, "cases": 8}  # of examples/contacts; eight cases give 512 tokens
STEPS = ["fetch-base", "fetch-adapter", "merge", "task", "quantize", "place", "compare", "lock"]
# A comparison that passes, whatever the model is worth.
PASS = ["--limit-weights", "1", "--limit-logits", "100", "--limit-score", "100"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with its environments, without weights, and with little data."""
    folder = tmp_path_factory.mktemp("copy") / "repository"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/results/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
            (folder / name).chmod((ROOT / name).stat().st_mode)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / ".venv-awq").symlink_to(installed_environment("awq"))
    (ROOT / "weights" / ".cache").mkdir(parents=True, exist_ok=True)
    (folder / "weights").mkdir()
    (folder / "weights" / ".cache").symlink_to(ROOT / "weights" / ".cache")
    for name, count in LINES.items():
        path = folder / "examples" / "contacts" / f"{name}.jsonl"
        path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:count]))
    return folder


def commands(script: str) -> Iterator[list[str]]:
    """The page's commands of this name, as words."""
    for block in BLOCKS:
        for line in block.replace("\\\n", " ").splitlines():
            if line.split()[0] == script:
                yield shlex.split(line)


def run(repository: Path, words: list[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    """As in a new shell there; fails with what the command said."""
    ours = {"VIRTUAL_ENV", "_ENTERED_VENV", "PYTHONPATH", "WEIGHTS_DIR", "WEIGHTS_LOCK", "ENGINE"}
    settings = {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}  # so wide that no line of a table is broken
    env = {name: value for name, value in os.environ.items() if name not in ours} | settings
    done = subprocess.run(
        words, cwd=repository, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900
    )
    assert done.returncode == code, (words, done.stdout[-2000:], done.stderr[-4000:])
    return done


def cut(folder: Path) -> None:
    """Leave the first layers of a checkpoint."""
    source = SafetensorsCheckpoint(folder)
    kept = [name for name in source.specs() if not (at := re.search(r"\.layers\.(\d+)\.", name)) or int(at[1]) < LAYERS]
    write_safetensors(folder / "cut.safetensors", Arrays({name: source.load(name).copy() for name in kept}))
    (folder / "cut.safetensors").replace(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "num_hidden_layers": LAYERS})


def beginnings(block: str) -> Iterator[str]:
    """What each line of printed output says before its first figure, or before what the page leaves out."""
    for line in block.splitlines():
        ends = "…" if line.startswith("[") else r"…|\d|│|  | the "
        if words := re.split(ends, line.strip("│ "), maxsplit=1)[0].strip():
            yield words


@pytest.mark.slow
def test_the_page_leads_from_the_base_to_a_served_answer(repository: Path, tmp_path: Path) -> None:
    (build,), (task,), (train,) = (
        commands(f"scripts/{name}") for name in ("build_base", "write_task", "train_adapter")
    )
    run(repository, build)
    cut(repository / "weights" / "smollm2")
    run(repository, task)
    run(repository, train)
    (words,) = commands("scripts/prepare")
    prepared = run(repository, [*words, *PASS])
    assert re.findall(r"^\[\d/8\] ([\w-]+): scripts/", prepared.stderr, re.MULTILINE) == STEPS
    check_printed(prepared.stderr + prepared.stdout)

    checkpoint = repository / "weights" / "contacts"
    verify(checkpoint, checkpoint.with_name("contacts.lock"))
    record = read_record(checkpoint)
    assert record is not None and record.comparison is not None and record.comparison["passed"]
    assert [step.name for step in record.steps] == STEPS

    (use,), (predict,), (curl,) = (commands(name) for name in ("scripts/use_weights", "scripts/predict", "curl"))
    assert "In use: contacts" in run(repository, use).stderr
    schema = json.loads((repository / "examples" / "contacts" / "contact.json").read_text())
    (answer,) = run(repository, predict).stdout.splitlines()
    jsonschema.validate(json.loads(answer), schema)
    body = json.loads(curl[curl.index("-d") + 1])
    with CogServer("predict.py:Predictor", env={"ENGINE": "paged"}, log=tmp_path / "log", package=repository) as server:
        assert "".join(post(server, **body["input"]).json()["output"]) == answer
    jsonschema.validate(json.loads(printed_answer()), schema)


def check_printed(found: str) -> None:
    """What the page shows of a run is what such a run prints."""
    (block,) = (block for block in BLOCKS if block.startswith("[1/8]"))
    for words in beginnings(block):
        assert words in found, (words, found[-4000:])


def printed_answer() -> str:
    """The answer that the page shows."""
    (answer,) = (block for block in BLOCKS if block.startswith("{"))
    return answer
