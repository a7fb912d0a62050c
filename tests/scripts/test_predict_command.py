"""scripts/predict as a user runs it, with a fake engine: stdout, stderr and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.honeycomb.query import parse_query
from tests.cog.tiny_weights import make_tiny_weights

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return make_tiny_weights(tmp_path_factory.mktemp("weights")) | {"ENGINE": "fake"}


@pytest.fixture
def predict(settings, tmp_path):
    """Run it from another folder; with the Python of the tests, so nothing is installed."""

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "predict"), *arguments],
            cwd=tmp_path,
            env={**os.environ, **settings, **env},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    return run


def test_only_the_query_is_on_stdout(predict):
    done = predict("-i", "nlq=count by name", "-i", "cols=['name']")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    parse_query(line, ["name"])


def test_json_prints_the_same_prediction_as_the_server(predict, tmp_path):
    (tmp_path / "cols.txt").write_text("name, error")
    done = predict("--json", "-i", "nlq=errors", "-i", "cols=@cols.txt", "-i", "max_tokens=300")
    prediction = json.loads(done.stdout)
    assert set(prediction) == {"id", "status", "output", "logs", "metrics"}
    assert prediction["status"] == "succeeded"
    parse_query("".join(prediction["output"]), ["name", "error"])
    assert set(prediction["metrics"]) == {
        "input_token_count",
        "cached_token_count",
        "output_token_count",
        "finish_reason",
        "kv_cache_usage",
        "model_passes",
        "tokens_per_second",
        "time_to_first_token",
        "predict_time",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "nlq=a"], "cols is missing; add -i cols=…"),
        (["-i", "nlq=a", "-i", "cols=["], "cols: item 1 does not parse"),
        (["-i", "nlq= ", "-i", "cols=a"], "nlq: is blank"),
        (["-i", "nlq=a", "-i", "cols=a", "-i", "max_tokens=3"], "max_tokens: the answer was not complete"),
        (["-i", "nlq=a", "-i", "cols=a", "-e", "nonesuch"], "engine 'nonesuch' is unknown"),
    ],
)
def test_bad_input_is_exit_code_2_with_nothing_on_stdout(predict, arguments, message):
    done = predict(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failed_prediction_is_exit_code_1(predict, tmp_path):
    done = predict("-i", "nlq=a", "-i", "cols=a", WEIGHTS_DIR=str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "this folder of weights does not exist" in done.stderr


def test_a_wrong_setting_is_named(predict):
    done = predict("-i", "nlq=a", "-i", "cols=a", MAX_NUM_SEQS="many")
    assert done.returncode == 2
    assert "max_num_seqs" in done.stderr


def test_a_failed_prediction_is_still_printed_as_json(predict):
    done = predict("--json", "-i", "nlq=a", "-i", "cols=a", "-i", "max_tokens=3")
    prediction = json.loads(done.stdout)
    assert (done.returncode, prediction["status"]) == (2, "failed")
    assert prediction["error"].startswith("max_tokens:")


def test_help_lists_the_inputs(predict):
    shown = predict("--help").stdout
    assert "scripts/predict -i NAME=VALUE" in shown
    assert "nlq (string, required): The question" in shown
