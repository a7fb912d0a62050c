"""A download from a web server is right, or it is an error, whatever happens to it or to the server."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import save

from pipeline.fetching.https import fetch_file, fetch_https, is_whole, recorded_digest, state
from pipeline.fetching.source import HttpsSource
from pipeline.paths import ROOT
from pipeline.weights.errors import CheckpointError
from tests.pipeline.fetching.hub_server import CONTENT, Hub

LARGE = 40 << 20  # bytes: such a file comes in parallel where its digest is known
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def tensors(seed: int, size: int = 400_000) -> bytes:
    return save({"w": np.random.default_rng(seed).integers(0, 255, size, np.uint8)})


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def hub():
    hub = Hub({"org/model": {"config.json": b"{}", "model.safetensors": tensors(1)}})
    hub.etag = CONTENT
    yield hub
    hub.close()


def url_of(hub: Hub) -> str:
    return f"{hub.url}/plain/org/model/model.safetensors"


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr("random.uniform", lambda low, high: 0.0)


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [400_000, LARGE], ids=["in one stream", "in parallel"])
def test_killed_at_random_moments_it_gives_the_right_bytes_at_last(tmp_path, size, kills):
    """By SIGKILL, SIGTERM and SIGINT; in one stream it continues, in parallel it begins again."""
    data = tensors(1, size)
    hub, folder = Hub({"org/model": {"config.json": b"{}", "model.safetensors": data}}), tmp_path / "out"
    hub.etag = CONTENT
    known = {"model.safetensors": digest(data)} if size == LARGE else {}
    program = "import sys; from pathlib import Path; from pipeline.fetching import fetch, source; "
    program += f"fetch.fetch(source.HttpsSource(sys.argv[1]), Path(sys.argv[2]), {known})"
    command = [sys.executable, "-c", program, f"{hub.url}/plain/org/model/", folder]
    rng, stopped = random.Random(size), 0
    try:
        for kill in range(kills):
            hub.faults.seconds_per_megabyte = 0.4 * 400_000 / size * 8
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
            sent, wanted = hub.sent, rng.uniform(0, 0.25) * size
            while process.poll() is None and hub.sent - sent < wanted:
                time.sleep(0.002)
            stopped += process.poll() is None
            process.send_signal(SIGNALS[kill % len(SIGNALS)])
            assert process.wait(timeout=60) != 0 or (folder / "model.safetensors").exists()
            if (folder / "model.safetensors").exists():
                assert (folder / "model.safetensors").read_bytes() == data
                shutil.rmtree(folder)  # so that the next one has something to fetch
        hub.faults.seconds_per_megabyte = 0.0
        assert subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT).returncode == 0
    finally:
        hub.close()
    assert stopped >= kills // 3, "stopped too rarely to show anything"
    assert (folder / "model.safetensors").read_bytes() == data
    assert json.loads((folder / "source.json").read_bytes())["files"]["model.safetensors"] == digest(data)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "source.json"]


def test_a_stopped_download_continues_in_the_same_version_only(hub, tmp_path, no_waiting):
    path = tmp_path / "model.safetensors"
    hub.faults.cuts = 100  # each answer ends in the middle of what is missing
    with pytest.raises(CheckpointError, match="8 times; run this again later"):
        fetch_file(url_of(hub), path)
    assert not path.exists()
    hub.faults.cuts, sent = 0, hub.sent
    fetch_file(url_of(hub), path)
    assert path.read_bytes() == hub.repos["org/model"]["model.safetensors"]
    assert hub.sent - sent < 0.1 * path.stat().st_size, "it continued"
    hub.faults.cuts = 100
    other = tmp_path / "other" / path.name
    with pytest.raises(CheckpointError, match="8 times"):
        fetch_file(url_of(hub), other)
    hub.repos["org/model"]["model.safetensors"] = changed = tensors(2)  # of the same size
    hub.faults.cuts = 0
    fetch_file(url_of(hub), other)
    assert other.read_bytes() == changed


def test_a_file_that_changes_while_it_comes_is_an_error(hub, tmp_path, no_waiting):
    """Of the same size: its length says nothing."""
    old, new = tensors(1), tensors(2)
    stop, ask = [], hub.faults

    class Changing(dict):
        """Another version after the first answer."""

        def get(self, name, default=None):
            stop.append(name)
            return old if len(stop) < 3 else new

    hub.repos["org/model"] = Changing({"model.safetensors": old})
    ask.cuts = 1
    with pytest.raises(CheckpointError, match="was changed while it was fetched; try again"):
        fetch_file(url_of(hub), tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()
    fetch_file(url_of(hub), tmp_path / "x.safetensors")
    assert (tmp_path / "x.safetensors").read_bytes() == new


def test_without_an_etag_nothing_is_continued_and_nothing_is_kept(hub, tmp_path, no_waiting):
    """The server could have changed the file without a sign."""
    hub.etag = None
    path = tmp_path / "model.safetensors"
    hub.faults.cuts = 2
    fetch_file(url_of(hub), path)
    hub.repos["org/model"]["model.safetensors"] = changed = tensors(2)
    fetch_file(url_of(hub), path)
    assert path.read_bytes() == changed


def test_a_file_of_the_right_size_is_not_taken_for_the_right_one(hub, tmp_path):
    data = hub.repos["org/model"]["model.safetensors"]
    (tmp_path / "model.safetensors").write_bytes(bytes(len(data)))
    fetch_https(HttpsSource(f"{hub.url}/plain/org/model/"), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == data
    sent = hub.sent
    fetch_https(HttpsSource(f"{hub.url}/plain/org/model/"), tmp_path)
    assert hub.sent == sent, "what is whole stays"
    stated = state(url_of(hub))
    assert is_whole(tmp_path / "model.safetensors", stated, recorded_digest(tmp_path / "model.safetensors", stated))
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(200_000)
        file.write(b"damage")
    fetch_https(HttpsSource(f"{hub.url}/plain/org/model/"), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == data


def test_another_digest_than_the_given_one_is_an_error_and_leaves_nothing(hub, tmp_path):
    source = HttpsSource(f"{hub.url}/plain/org/model/")
    with pytest.raises(CheckpointError, match="does not have the digest"):
        fetch_https(source, tmp_path / "out", {"model.safetensors": "0" * 64})
    assert not (tmp_path / "out/model.safetensors").exists()
    with pytest.raises(CheckpointError, match=r"no other\.safetensors, of which a digest was given"):
        fetch_https(source, tmp_path / "out", {"other.safetensors": "0" * 64})


def test_large_files_whose_digest_is_known_come_in_parallel_ranges(tmp_path):
    data = tensors(1, LARGE)
    hub = Hub({"org/model": {"config.json": b"{}", "model.safetensors": data}})
    try:
        fetch_file(url_of(hub), tmp_path / "a", digest=digest(data))
        assert hub.requests["GET /plain/org/model/model.safetensors"] > 1
        hub.requests.clear()
        fetch_file(url_of(hub), tmp_path / "b")
        assert hub.requests["GET /plain/org/model/model.safetensors"] == 1, "else two versions could be mixed"
    finally:
        hub.close()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == data
