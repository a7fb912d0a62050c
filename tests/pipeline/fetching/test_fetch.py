"""Checkpoints come from a small hub, the web or a folder: complete and right, or an error that says what to do."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from pipeline.fetching import wanted
from pipeline.fetching.fetch import fetch
from pipeline.fetching.source import parse_source
from pipeline.paths import ROOT
from pipeline.weights.errors import CheckpointError
from tests.pipeline.fetching.hub_server import COMMIT, Hub, ask_from_here

TENSORS = save({"w": np.random.default_rng(0).integers(0, 255, 3_000_000, np.uint8)})
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{" + b" " * 20_000 + b"}",
    "model.safetensors": TENSORS,
    "pytorch_model.bin": b"pickled" * 3_000,
    "README.md": b"# A model",
    "onnx/model.safetensors": b"other" * 3_000,
}
NEEDED = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def hub(monkeypatch):
    server = Hub({"org/model": dict(MODEL)})
    ask_from_here(monkeypatch, server)
    yield server
    server.close()


def start(hub: Hub, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """scripts/fetch of the hub's model."""
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder.parent / "hf-home"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "fetch"), "hf://org/model", str(folder)],
        env=os.environ | settings | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(hub: Hub, folder: Path, **environment: str) -> tuple[int, str]:
    process = start(hub, folder, **environment)
    output, _ = process.communicate(timeout=120)
    return process.returncode, " ".join(output.split())


def assert_whole(folder: Path) -> None:
    record = json.loads((folder / "source.json").read_text())
    assert sorted(record["files"]) == NEEDED
    for name in NEEDED:
        assert (folder / name).read_bytes() == MODEL[name], name


def test_a_repository_is_pinned_to_its_commit_and_only_what_is_needed_comes(hub, tmp_path):
    fetch(parse_source("hf://org/model@main"), tmp_path / "out")
    assert_whole(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "source.json").read_text())["source"] == f"hf://org/model@{COMMIT}"
    assert not any("onnx" in request or "README" in request for request in hub.requests)
    sent = hub.sent
    fetch(parse_source(f"hf://org/model@{COMMIT}"), tmp_path / "out")
    assert hub.sent - sent < 5_000, "only the listing is asked for again"


def test_of_an_adapter_the_optimizer_s_state_and_other_files_stay_behind(tmp_path):
    """A folder as scripts/train_adapter leaves it."""
    trained, out = tmp_path / "trained", tmp_path / "out"
    trained.mkdir()
    names = ["adapter_config.json", "adapter_model.safetensors"]
    for name in [*names, "state.safetensors", "run.json", "loss.png"]:
        (trained / name).write_bytes(TENSORS[:1000])
    fetch(parse_source(str(trained)), out)
    assert sorted(path.name for path in out.iterdir() if path.name[0] != ".") == [*names, "source.json"]


@pytest.mark.parametrize("source", ["hf://org/model", "{url}/plain/org/model"])
def test_busy_servers_and_broken_connections_are_outlasted(hub, tmp_path, source):
    hub.faults.statuses = [(503, {}), (429, {"retry-after": "0.5"})]
    hub.faults.cuts = 3
    started = time.monotonic()
    fetch(parse_source(source.format(url=hub.url)), tmp_path / "out")
    assert time.monotonic() - started >= 0.5, "Retry-After is respected"
    assert_whole(tmp_path / "out")


def test_a_flipped_byte_is_noticed_and_the_file_fetched_again_once(hub, tmp_path):
    hub.faults.flips = 1
    fetch(parse_source("hf://org/model"), tmp_path / "out")
    assert_whole(tmp_path / "out")
    hub.faults.flips = 99
    with pytest.raises(CheckpointError, match="digest that the hub gives"):
        fetch(parse_source("hf://org/model"), tmp_path / "again")
    assert not {"source.json", "model.safetensors"} & {path.name for path in (tmp_path / "again").iterdir()}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("hf://org/nothing", "no such repository, or it is private"),
        ("hf://org/model@v9", "no such revision"),
        ("hf://model", "not of the form hf://ORG/NAME"),
        ("ftp://host/x", "ftp:// is not supported"),
        ("/no/such/folder", "no such folder"),
    ],
)
def test_what_cannot_be_fetched_says_why(hub, tmp_path, source, named):
    with pytest.raises(CheckpointError, match=named):
        fetch(parse_source(source), tmp_path / "out")


def test_a_gated_repository_says_how_to_get_in(hub, tmp_path):
    hub.faults.gated = True
    with pytest.raises(CheckpointError, match="is gated: ask for access"):
        fetch(parse_source("hf://org/model"), tmp_path / "out")


def test_the_hub_s_login_is_used_and_never_printed(hub, tmp_path):
    hub.token = secret = "hf_secretsecretsecret"
    code, output = run(hub, tmp_path / "out")
    assert (code, "hf auth login" in output, "Traceback" in output) == (1, True, False)
    hub.faults.statuses = [(503, {"retry-after": "0"})]
    code, output = run(hub, tmp_path / "out", HF_TOKEN=secret)
    assert code == 0, output
    assert secret not in output
    assert_whole(tmp_path / "out")
    for file in (tmp_path / "out").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()


def test_a_disk_that_is_too_small_is_said_before_anything_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(wanted.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 28})())
    with pytest.raises(CheckpointError, match="are free there; make room"):
        wanted.check_space(tmp_path / "new" / "out", {"model.safetensors": 3_000_000})
    wanted.check_space(tmp_path / "new" / "out", {})


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_lose_nothing(hub, tmp_path, kills):
    """Killed at random moments, the next call continues; what is sent in all stays far below so many downloads."""
    folder, rng = tmp_path / "out", random.Random(kills)
    for _ in range(kills):
        hub.faults.seconds_per_megabyte, before, enough = 0.5, hub.sent, rng.randrange(1, 100_000)
        process = start(hub, folder)
        while process.poll() is None and hub.sent - before < enough:
            time.sleep(0.005)
        assert process.poll() is None, process.communicate()[0]
        process.kill()
        process.communicate()
    hub.faults.seconds_per_megabyte = 0.0
    code, output = run(hub, folder)
    assert code == 0, output
    assert_whole(folder)
    assert hub.sent < (1 + 0.15 * kills) * len(TENSORS)


def test_two_processes_download_once(hub, tmp_path):
    hub.faults.seconds_per_megabyte = 100.0
    first = start(hub, tmp_path / "out")
    while hub.sent < 50_000:
        assert first.poll() is None
        time.sleep(0.005)
    second = start(hub, tmp_path / "out")
    assert second.stdout is not None
    assert "Waiting for another process" in second.stdout.readline()
    hub.faults.seconds_per_megabyte = 0.0
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert_whole(tmp_path / "out")
    assert hub.sent < 1.2 * sum(len(MODEL[name]) for name in NEEDED)


def test_an_https_index_names_the_shards_and_nothing_outside_of_the_folder(hub, tmp_path):
    name, url = "model-00001-of-00001.safetensors", f"{hub.url}/plain/org/model"
    index = json.dumps({"weight_map": {"w": name}}).encode()
    hub.repos["org/model"] = {"config.json": b"{}", "model.safetensors.index.json": index, name: TENSORS}
    fetch(parse_source(url), tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == TENSORS
    hub.repos["org/model"]["model.safetensors.index.json"] = b'{"weight_map": {"w": "%2e%2e%2fevil.safetensors"}}'
    with pytest.raises(CheckpointError, match=r"which is not a \.safetensors file in its folder"):
        fetch(parse_source(url), tmp_path / "other")


def test_the_hub_s_cache_is_copied_as_files_and_links_that_lead_out_are_refused(tmp_path):
    repository = tmp_path / "models--org--model"
    snapshot = repository / "snapshots" / COMMIT
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in NEEDED:
        (repository / "blobs" / name).write_bytes(MODEL[name])
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    fetch(parse_source(str(snapshot)), tmp_path / "out")
    assert_whole(tmp_path / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    (tmp_path / "secret").write_text("{}")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="is a link to"):
        fetch(parse_source(str(snapshot)), tmp_path / "other")


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/x.safetensors", "a\\..\\b.safetensors"])
def test_names_that_lead_out_are_refused(hub, tmp_path, name):
    hub.repos["org/model"] = {"config.json": b"{}", name: b"x" * 20_000}
    with pytest.raises(CheckpointError, match="outside its folder"):
        fetch(parse_source("hf://org/model"), tmp_path / "out")
