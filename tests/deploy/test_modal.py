"""The Modal recipe: it is imported with the real client, and its functions run on this machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pipeline.environment.enter import installed_environment
from tasks.honeycomb.query import parse_query
from tests.cog.tiny_weights import make_tiny_weights

pytestmark = pytest.mark.index
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
from deploy.modal.modal_app import Model, app
model, request = Model(), {"inputs": {"nlq": "count by name", "cols": ["name", "error"]}}
answers = [model.answer.local(request), model.ask.local(request)]
print(json.dumps([app.name, answers]))
"""


@pytest.mark.timeout(600)  # the first time, the environment is made
def test_its_functions_run_locally(tmp_path: Path) -> None:
    settings = make_tiny_weights(tmp_path)
    python = installed_environment("modal") / "bin" / "python"
    env = {**os.environ, **settings, "ENGINE": "fake", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([python, "-c", PROGRAM], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, answers = json.loads(done.stdout.splitlines()[-1])
    assert name == "my-model"
    for answer in answers:
        parse_query(answer["output"], ["name", "error"])
        assert answer["output_tokens"] > 0
