"""scripts/fetch --lock: exactly the files of a lock, in its sizes and with its digests, or nothing at all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from pipeline.locking.fetch_locked import fetch_locked
from pipeline.weights.errors import CheckpointError
from serving.weights import LockedFile, LockedSource, WeightsLock, lock_of, verify
from serving.weights.lock import locked_file
from tests.pipeline.fetching.hub_server import COMMIT, Hub

ROOT = Path(__file__).resolve().parents[3]
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{" + b" " * 20_000 + b"}",
    "model.safetensors": save({"w": np.arange(2_000_000, dtype=np.uint8)}),
    "README.md": b"# A model",
}
FILES = ("config.json", "model.safetensors", "tokenizer.json")
HUB = LockedSource(uri="hf://org/model", fingerprint=f"commit:{COMMIT}", include=FILES)


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub({"org/model": dict(MODEL)})
    yield server
    server.close()


def entry_of(data: dict[str, bytes]) -> list[LockedFile]:
    return [locked_file(name, len(content), sha256(content).hexdigest()) for name, content in data.items()]


def write_lock(folder: Path, *sources: LockedSource, files: dict[str, bytes] | None = None) -> Path:
    """A lock of weights `tiny` in `folder`."""
    data = files if files is not None else {name: MODEL[name] for name in FILES}
    entry = lock_of("tiny", "/src/weights/tiny", sources, "2026-01-01T00:00:00Z", tuple(entry_of(data)))
    path = folder / "tiny.lock"
    path.write_text(WeightsLock(version=1, envelope_format="", weights=(entry,)).text())
    return path


def start(hub: Hub, lock: Path) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(lock.parent / "hf-home"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, str(ROOT / "scripts" / "fetch"), "--lock", str(lock), "--into", str(target(lock))]
    return subprocess.Popen(
        command, env=clean | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=lock.parent
    )


def run(hub: Hub, lock: Path) -> tuple[int, str]:
    process = start(hub, lock)
    output, _ = process.communicate(timeout=120)
    return process.returncode, " ".join(output.split())


def target(lock: Path) -> Path:
    return lock.parent / "weights" / "tiny"


def test_a_locked_repository_comes_at_its_commit_and_passes_the_check_at_start(hub: Hub, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, HUB)
    code, output = run(hub, lock)
    assert code == 0, output
    verify(target(lock), lock)
    assert f"GET /api/models/org/model/revision/{COMMIT}" in hub.requests, "the commit is asked for, not a branch"
    requests = hub.requests.total()
    fetch_locked(lock, tmp_path)
    assert hub.requests.total() == requests, "what is complete is not asked for again"


def test_a_repository_that_differs_from_the_lock_is_refused_before_anything_is_written(
    hub: Hub, tmp_path: Path
) -> None:
    lock = write_lock(tmp_path, HUB)
    hub.repos["org/model"]["model.safetensors"] = MODEL["model.safetensors"][:-1] + b"!"
    code, output = run(hub, lock)
    assert (code, "and the lock 2,0" in output) == (1, True), output
    assert not any("resolve" in request for request in hub.requests), "no file was asked for"
    assert not target(lock).exists()


def test_a_small_file_that_differs_is_refused_and_does_not_stay(hub: Hub, tmp_path: Path) -> None:
    """The hub states no SHA-256 for it: only its contents tell."""
    lock = write_lock(tmp_path, HUB)
    hub.repos["org/model"]["config.json"] = b'{"model_type": "tapir"}'
    code, output = run(hub, lock)
    assert (code, "its config.json does not have the digest of the lock" in output) == (1, True), output
    assert not target(lock).exists()
    hub.repos["org/model"]["config.json"] = MODEL["config.json"]
    sent = hub.sent
    assert run(hub, lock)[0] == 0
    assert hub.sent - sent < 5_000, "the large files were right and are not fetched again"


def test_a_kill_leaves_no_half_folder_and_the_next_call_continues(hub: Hub, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, HUB)
    hub.faults.seconds_per_megabyte = 1.0
    process = start(hub, lock)
    deadline = time.monotonic() + 60
    while hub.sent < 500_000:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert not target(lock).exists()
    hub.faults.seconds_per_megabyte = 0.0
    code, output = run(hub, lock)
    assert code == 0, output
    verify(target(lock), lock)
    assert hub.sent < 1.6 * len(MODEL["model.safetensors"])


def https(hub: Hub, name: str) -> LockedSource:
    return LockedSource(uri=f"{hub.url}/plain/org/model/{name}", fingerprint="sha256:" + "0" * 64)


def test_https_files_and_a_folder_of_the_repository_come_together(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "task.json").write_bytes(b'{"task": "chat"}')
    files = {name: MODEL[name] for name in ("config.json", "model.safetensors")}
    folder = LockedSource(uri="file://./task", fingerprint="sha256:" + "0" * 64)
    sources = (https(hub, "config.json"), https(hub, "model.safetensors"), folder)
    lock = write_lock(tmp_path, *sources, files=files | {"task.json": b'{"task": "chat"}'})
    assert fetch_locked(lock, tmp_path) == [target(lock)]
    verify(target(lock), lock)


def test_a_server_that_sends_more_than_the_lock_has_is_refused(hub: Hub, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, https(hub, "model.safetensors"), files={"model.safetensors": b"x" * 100})
    with pytest.raises(CheckpointError, match=r"bytes now instead of 100"):
        fetch_locked(lock, tmp_path)
    assert hub.sent == 0
    hub.repos["org/model"]["model.safetensors"] = b"y" * 100
    with pytest.raises(CheckpointError, match="does not have the digest"):
        fetch_locked(lock, tmp_path)
    assert not target(lock).exists()


def test_right_files_in_the_folder_are_kept_and_others_are_not_lost(hub: Hub, tmp_path: Path) -> None:
    files = {name: MODEL[name] for name in ("config.json", "model.safetensors")}
    lock = write_lock(tmp_path, https(hub, "config.json"), https(hub, "model.safetensors"), files=files)
    target(lock).mkdir(parents=True)
    (target(lock) / "model.safetensors").write_bytes(MODEL["model.safetensors"])
    (target(lock) / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"files that the lock does not have, or has otherwise: notes.txt"):
        fetch_locked(lock, tmp_path)
    (target(lock) / "notes.txt").unlink()
    fetch_locked(lock, tmp_path)
    verify(target(lock), lock)
    assert hub.sent == len(MODEL["config.json"])


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (LockedSource(uri="hf://org/model", fingerprint="sha256:" + "0" * 64), "the lock has no commit for it"),
        (LockedSource(uri="http://example.org/model.safetensors", fingerprint=""), "http:// is not supported"),
        (LockedSource(uri="file://../elsewhere", fingerprint=""), "is not a folder of this repository"),
        (LockedSource(uri="file://./weights/tiny", fingerprint=""), "no source of the lock has config.json, model"),
        (LockedSource(uri="s3://bucket/x", fingerprint=""), "is not a folder of this repository"),
    ],
)
def test_what_a_lock_cannot_be_fetched_from_is_named(source: LockedSource, named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=named):
        fetch_locked(write_lock(tmp_path, source), tmp_path)
    assert not (tmp_path / "weights" / "tiny").exists()
