"""The README's first command in a fresh clone."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tasks.honeycomb.query import parse_query

pytestmark = [pytest.mark.clone, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone: only what is committed."""
    folder = tmp_path / "repository"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


@pytest.fixture
def command() -> list[str]:
    readme = (ROOT / "README.md").read_text("utf-8").replace("\\\n", " ")
    return shlex.split(re.search(r"^\$? ?(scripts/predict -i .*)$", readme, re.MULTILINE)[1])


def run(clone: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """As in a new shell: without the environment that runs the tests."""
    ours = {"VIRTUAL_ENV", "_ENTERED_VENV", "PYTHONPATH", "WEIGHTS_DIR", "WEIGHTS_LOCK", "ENGINE"}
    env = {name: value for name, value in os.environ.items() if name not in ours}
    env["PATH"] = os.pathsep.join(p for p in env["PATH"].split(os.pathsep) if ".venv" not in p)
    return subprocess.run(
        command, cwd=clone, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1500
    )


def test_a_clone_builds_its_weights_and_answers(clone, command):
    """With nothing but the package index. The first call makes all, a later one is silent; git sees nothing of it."""
    first, later = run(clone, command), run(clone, command)
    assert first.returncode == 0, first.stderr[-4000:]
    (line,) = first.stdout.splitlines()
    columns = next(word for word in command if word.startswith("cols=")).removeprefix("cols=")
    parse_query(line, ast.literal_eval(columns))
    assert "Setting up .venv" in first.stderr
    assert later.stdout == first.stdout
    assert "Setting up" not in later.stderr
    status = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True)
    assert status.stdout == ""
