"""The AWQ search layer by layer: every architecture, kills between and inside layers, and the report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.compare.plain_weights import PlainWeights
from pipeline.weights.awq_checkpoint import AwqCheckpoint
from pipeline.weights.awq_search_result import AwqSearchResult
from pipeline.weights.safetensors_io import SafetensorsCheckpoint, write_safetensors
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from tests.pipeline.weights.quantizing import MODELS, command, environment, quantize, write_model
from tests.serving.models.batches import run_whole

pytestmark = pytest.mark.awq
TOKENS = list(range(3, 60))


@pytest.mark.parametrize(
    "name", [name if name == "qwen2" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_every_architecture_is_quantized_and_read_by_our_engine(name: str, tmp_path: Path) -> None:
    theirs = write_model(name, tmp_path / "model")
    result = quantize(tmp_path / "model", tmp_path / "out", "--json", str(tmp_path / "report.json"))
    assert result.returncode == 0, result.stderr
    assert "Group size 64: the largest" in result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["group_size"], report["tensor_parallel"]) == (64, 1)
    assert report["peak_memory_bytes"] > 2**20
    assert report["seconds"].keys() == {"fingerprint", "search", "pack"}

    plain = tmp_path / "plain"  # rounded without a search
    shutil.copytree(tmp_path / "out", plain)
    rounded = AwqCheckpoint(SafetensorsCheckpoint(tmp_path / "model"), AwqSearchResult(64))
    write_safetensors(plain / "model.safetensors", rounded)
    exact, searched, without = (logits(folder) for folder in (tmp_path / "model", tmp_path / "out", plain))
    assert (searched - exact).square().mean() < 0.7 * (without - exact).square().mean()

    quantized = PlainWeights(tmp_path / "out")  # transformers computes the same with the dequantized weights
    for parameter_name, parameter in theirs.named_parameters():
        parameter.data = torch.from_numpy(np.array(quantized.load(parameter_name)))
    with torch.no_grad():
        expected = theirs(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(searched, expected, rtol=1e-3, atol=1e-3)


def logits(folder: Path) -> torch.Tensor:
    """Logits of our engine's model on the reference kernels."""
    return run_whole(load_with_kernels(folder, ReferenceKernels()), TOKENS, [len(TOKENS)])


def test_a_killed_search_continues_and_gives_the_same_bytes(tmp_path: Path) -> None:
    write_model("llama", tmp_path / "model", num_hidden_layers=3)
    whole = quantize(tmp_path / "model", tmp_path / "whole", "--save-search", str(tmp_path / "whole.search"))
    assert whole.returncode == 0, whole.stderr
    options = ("--save-search", str(tmp_path / "killed.search"))
    state = tmp_path / ".killed.search"
    for wanted in ("layer-000.safetensors", "hidden-002.safetensors"):  # killed again before the layer was complete
        kill_when_there(command(tmp_path / "model", tmp_path / "killed", *options), state / wanted)
        assert not (tmp_path / "killed.search").exists()
    last = quantize(tmp_path / "model", tmp_path / "killed", *options)
    assert last.returncode == 0, last.stderr
    assert "Continuing after" in last.stderr
    assert not state.exists()
    assert (tmp_path / "killed.search").read_bytes() == (tmp_path / "whole.search").read_bytes()
    for file in (tmp_path / "whole").iterdir():
        assert (tmp_path / "killed" / file.name).read_bytes() == file.read_bytes()


def kill_when_there(line: list[str], file: Path) -> None:
    """Start the command, and kill it as soon as it has written the file."""
    process = subprocess.Popen(line, env=environment(), stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 200
    while not file.exists():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_other_texts_begin_a_new_search(tmp_path: Path) -> None:
    """An interrupted search on other texts is not continued."""
    write_model("llama", tmp_path / "model", num_hidden_layers=2)
    fresh = quantize(tmp_path / "model", tmp_path / "fresh", "--max-tokens", "600")
    assert fresh.returncode == 0, fresh.stderr
    line = command(tmp_path / "model", tmp_path / "out")
    kill_when_there(line, tmp_path / ".out.search" / "layer-000.safetensors")
    result = quantize(tmp_path / "model", tmp_path / "out", "--max-tokens", "600")
    assert result.returncode == 0, result.stderr
    assert "Continuing" not in result.stderr
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "fresh/model.safetensors").read_bytes()


def test_unsupported_models_are_refused_before_the_search(tmp_path: Path) -> None:
    write_model("llama", tmp_path / "model")
    split = quantize(tmp_path / "model", tmp_path / "out", "--group-size", "64", "--tensor-parallel", "2")
    assert split.returncode == 1
    assert "o_proj has 64 inputs" in split.stderr
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    other = quantize(tmp_path / "model", tmp_path / "out")
    assert other.returncode == 1
    assert "model_type 'gpt2'; llama, mistral" in other.stderr
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in split.stderr + other.stderr
