"""scripts/fetch through the real clients, against a small hub: complete and right, or an error that says what to do."""

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

from tests.pipeline.fetching.hub_server import COMMIT, CONTENT, Hub

ROOT = Path(__file__).resolve().parents[3]
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
def hub():
    server = Hub({"org/model": dict(MODEL)})
    yield server
    server.close()


def start(hub: Hub, source: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder.parent / "hf-home"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "fetch"), source, str(folder)],
        env=clean | settings | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def fetch(hub: Hub, source: str, folder: Path, **environment: str) -> tuple[int, str]:
    process = start(hub, source, folder, **environment)
    output, _ = process.communicate(timeout=120)
    return process.returncode, " ".join(output.split())


def assert_whole(folder: Path) -> None:
    record = json.loads((folder / "source.json").read_text())
    assert sorted(record["files"]) == NEEDED
    for name in NEEDED:
        assert (folder / name).read_bytes() == MODEL[name], name


def test_a_repository_is_pinned_to_its_commit_and_only_what_is_needed_comes(hub, tmp_path):
    code, output = fetch(hub, "hf://org/model@main", tmp_path / "out")
    assert code == 0, output
    assert_whole(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "source.json").read_text())["source"] == f"hf://org/model@{COMMIT}"
    assert not any("onnx" in request or "README" in request for request in hub.requests)
    sent = hub.sent
    assert fetch(hub, f"hf://org/model@{COMMIT}", tmp_path / "out")[0] == 0
    assert hub.sent - sent < 5_000, "only the listing is asked for again"


def test_of_an_adapter_the_optimizer_s_state_and_other_files_stay_behind(hub, tmp_path):
    """A folder as scripts/train_adapter leaves it."""
    trained = tmp_path / "trained"
    trained.mkdir()
    names = ["adapter_config.json", "adapter_model.safetensors"]
    for name in [*names, "state.safetensors", "run.json", "loss.png"]:
        (trained / name).write_bytes(TENSORS[:1000])
    code, output = fetch(hub, str(trained), tmp_path / "out")
    assert code == 0, output
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name[0] != ".") == [*names, "source.json"]


def test_busy_servers_and_broken_connections_are_outlasted(hub, tmp_path):
    hub.faults.statuses = [(503, {}), (429, {"retry-after": "1"})]
    hub.faults.cuts = 2
    started = time.monotonic()
    code, output = fetch(hub, "hf://org/model", tmp_path / "out")
    assert code == 0, output
    assert time.monotonic() - started >= 1.0, "Retry-After is respected"
    assert_whole(tmp_path / "out")


def test_a_flipped_byte_is_noticed_and_the_file_fetched_again(hub, tmp_path):
    hub.faults.flips = 1
    code, output = fetch(hub, "hf://org/model", tmp_path / "out")
    assert code == 0, output
    assert "again: it was damaged" in output
    assert_whole(tmp_path / "out")


def test_a_file_that_stays_damaged_is_an_error_and_does_not_stay(hub, tmp_path):
    hub.faults.flips = 99
    code, output = fetch(hub, "hf://org/model", tmp_path / "out")
    assert code == 1
    assert "digest that the hub gives" in output
    assert not (tmp_path / "out" / "source.json").exists()
    assert not (tmp_path / "out" / "model.safetensors").exists()


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
    code, output = fetch(hub, source, tmp_path / "out")
    assert code == 1
    assert named in output
    assert "Traceback" not in output


def test_a_gated_repository_says_how_to_get_in(hub, tmp_path):
    hub.faults.gated = True
    code, output = fetch(hub, "hf://org/model", tmp_path / "out")
    assert code == 1
    assert "is gated: ask for access" in output


def test_the_hub_s_login_is_used_and_never_printed(tmp_path):
    secret = "hf_secretsecretsecret"
    hub = Hub({"org/model": dict(MODEL)}, token=secret)
    try:
        code, output = fetch(hub, "hf://org/model", tmp_path / "out")
        assert (code, "hf auth login" in output) == (1, True)
        hub.faults.statuses = [(503, {})]
        code, output = fetch(hub, "hf://org/model", tmp_path / "out", HF_TOKEN=secret)
        assert code == 0, output
        assert secret not in output
        assert_whole(tmp_path / "out")
        for file in (tmp_path / "out").rglob("*"):
            assert not file.is_file() or secret.encode() not in file.read_bytes()
    finally:
        hub.close()


def test_a_disk_that_is_too_small_is_said_before_anything_is_downloaded(hub, tmp_path, monkeypatch):
    from pipeline.fetching import wanted
    from pipeline.weights.errors import CheckpointError

    monkeypatch.setattr(wanted.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 28})())
    with pytest.raises(CheckpointError, match="are free there; make room"):
        wanted.check_space(tmp_path / "new" / "out", {"model.safetensors": 3_000_000})
    wanted.check_space(tmp_path / "new" / "out", {})


@pytest.mark.parametrize("source", ["hf://org/model", "https"])
def test_twenty_kills_lose_nothing(hub, tmp_path, source):
    """Killed at random moments, the next call continues; what is sent in all stays far below twenty downloads."""
    hub.faults.seconds_per_megabyte, hub.etag = 0.5, CONTENT
    source = f"{hub.url}/plain/org/model" if source == "https" else source
    rng, kills, folder = random.Random(source), 0, tmp_path / "out"
    while kills < 20:
        process = start(hub, source, folder)
        deadline = time.monotonic() + 20
        before = hub.sent
        while process.poll() is None and hub.sent - before < rng.randrange(1, 150_000) and time.monotonic() < deadline:
            time.sleep(0.005)
        if process.poll() is not None and process.returncode == 0:
            break
        process.kill()
        process.communicate()
        kills += 1
    hub.faults.seconds_per_megabyte = 0.0
    code, output = fetch(hub, source, folder)
    assert code == 0, output
    assert kills >= 10, "killed too rarely to show anything"
    assert_whole(folder)
    assert hub.sent < 4 * len(TENSORS)


def test_two_processes_download_once(hub, tmp_path):
    hub.faults.seconds_per_megabyte = 0.3
    processes = [start(hub, "hf://org/model", tmp_path / "out") for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert hub.sent < 1.2 * sum(len(MODEL[name]) for name in NEEDED)
    assert any("Waiting for another process" in output for output in outputs)


def test_an_https_folder_resumes_and_retries(hub, tmp_path):
    hub.faults.statuses = [(503, {"retry-after": "0"})]
    hub.faults.cuts = 3
    code, output = fetch(hub, f"{hub.url}/plain/org/model", tmp_path / "out")
    assert code == 0, output
    assert_whole(tmp_path / "out")


def test_an_https_index_names_the_shards_and_nothing_outside_of_the_folder(tmp_path):
    name = "model-00001-of-00001.safetensors"
    index = {"config.json": b"{}", "model.safetensors.index.json": json.dumps({"weight_map": {"w": name}}).encode()}
    hub = Hub({"org/model": {**index, name: TENSORS}})
    try:
        code, output = fetch(hub, f"{hub.url}/plain/org/model", tmp_path / "out")
        assert code == 0, output
        assert (tmp_path / "out" / name).read_bytes() == TENSORS
        bad = b'{"weight_map": {"w": "%2e%2e%2fevil.safetensors"}}'
        hub.repos["org/model"]["model.safetensors.index.json"] = bad
        code, output = fetch(hub, f"{hub.url}/plain/org/model", tmp_path / "other")
        assert code == 1
        assert "which is not a .safetensors file in its folder" in output
    finally:
        hub.close()


def test_the_hub_s_cache_is_copied_as_files_and_links_that_lead_out_are_refused(hub, tmp_path):
    repository = tmp_path / "models--org--model"
    snapshot = repository / "snapshots" / COMMIT
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in NEEDED:
        (repository / "blobs" / name).write_bytes(MODEL[name])
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    code, output = fetch(hub, str(snapshot), tmp_path / "out")
    assert code == 0, output
    assert_whole(tmp_path / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    (tmp_path / "secret").write_text("{}")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "secret")
    code, output = fetch(hub, str(snapshot), tmp_path / "other")
    assert code == 1
    assert "is a link to" in output


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/x.safetensors", "a\\..\\b.safetensors"])
def test_names_that_lead_out_are_refused(tmp_path, name):
    hub = Hub({"org/model": {"config.json": b"{}", name: b"x" * 20_000}})
    try:
        code, output = fetch(hub, "hf://org/model", tmp_path / "out")
        assert code == 1
        assert "outside its folder" in output
    finally:
        hub.close()
