"""Locks of hub repositories and https files: right digests without downloading tensors, and a second run is a no-op."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from pipeline.locking.make_lock import make_lock
from serving.weights import WeightsLock, set_digest, verify
from tests.pipeline.fetching.hub_server import COMMIT, CONTENT, Hub

ROOT = Path(__file__).resolve().parents[3]
TENSORS = save({"w": np.arange(1_000_000, dtype=np.uint8)})
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{" + b" " * 20_000 + b"}",
    "model.safetensors": TENSORS,
    "README.md": b"# A model",
}
STANZA = "weights:\n- {{name: tiny, target: /src/weights/tiny, source: {source}}}\n"


@pytest.fixture
def hub():
    server = Hub({"org/model": dict(MODEL), "org/code": {**MODEL, "modeling.py": b"print()"}})
    yield server
    server.close()


def lock(hub: Hub, folder: Path, source: str) -> tuple[int, str]:
    (folder / "cog.yaml").write_text(STANZA.format(source=source))
    return run(hub, folder, "--cog-yaml", str(folder / "cog.yaml"), "--lock", str(folder / "weights.lock"))


def run(hub: Hub, folder: Path, *options: str) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf-home"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, str(ROOT / "scripts" / "lock_weights"), *options]
    done = subprocess.run(command, env=clean | settings, capture_output=True, text=True)
    return done.returncode, done.stderr + done.stdout


def put(folder: Path, *names: str) -> Path:
    weights = folder / "weights" / "tiny"
    weights.mkdir(parents=True)
    for name in names:
        (weights / name).write_bytes(MODEL[name])
    return weights


def test_a_hub_repository_is_locked_without_its_tensors(hub, tmp_path):
    """The fingerprint is the commit's; the files are all of the repository, as Cog imports them."""
    code, output = lock(hub, tmp_path, "{uri: 'hf://org/model'}")
    assert code == 0, output
    assert hub.sent < 5_000, "only small files are downloaded"
    assert not any("model.safetensors" in request for request in hub.requests)
    (entry,) = WeightsLock.load(tmp_path / "weights.lock").weights
    assert [(source.uri, source.fingerprint) for source in entry.sources] == [("hf://org/model", f"commit:{COMMIT}")]
    assert {file.path: (file.size, file.digest) for file in entry.files} == {
        name: (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") for name, data in MODEL.items()
    }
    assert entry.set_digest == set_digest(entry.files)
    weights = put(tmp_path, *MODEL)
    assert verify(weights, tmp_path / "weights.lock").name == "tiny", "the check at start takes it"


def test_a_second_run_changes_nothing(hub, tmp_path):
    source = "{uri: 'hf://org/model@main', include: ['*.json', model.safetensors]}"
    assert lock(hub, tmp_path, source)[0] == 0
    path = tmp_path / "weights.lock"
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    code, output = lock(hub, tmp_path, source)
    assert (code, "is up to date" in output) == (0, True), output
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    (entry,) = WeightsLock.load(path).weights
    assert [file.path for file in entry.files] == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_task_file_comes_from_a_folder_beside_the_repository(hub, tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "task.json").write_text('{"task": "chat", "name": "tiny"}')
    code, output = lock(hub, tmp_path, "[{uri: 'hf://org/model', exclude: [README.md]}, {uri: task}]")
    assert code == 0, output
    (entry,) = WeightsLock.load(tmp_path / "weights.lock").weights
    assert [source.uri for source in entry.sources] == ["hf://org/model", "file://./task"]
    assert "task.json" in {file.path for file in entry.files}


def test_a_repository_with_code_needs_a_choice_and_the_message_has_it(hub, tmp_path):
    code, output = lock(hub, tmp_path, "{uri: 'hf://org/code'}")
    assert code == 1
    assert "modeling.py: could run code" in output
    assert "- model.safetensors" in output
    assert not (tmp_path / "weights.lock").exists()


def test_a_config_that_names_code_is_refused(hub, tmp_path):
    hub.repos["org/model"]["config.json"] = b'{"auto_map": {"AutoModel": "x.Y"}}'
    code, output = lock(hub, tmp_path, "{uri: 'hf://org/model'}")
    assert (code, "auto_map names code to run" in output) == (1, True), output


def test_https_files_are_locked_by_what_they_hold(hub, tmp_path):
    hub.etag = CONTENT
    base = f"{hub.url}/plain/org/model"
    source = f"[{{uri: '{base}/config.json'}}, {{uri: '{base}/model.safetensors'}}]"
    code, output = lock(hub, tmp_path, source)
    assert code == 0, output
    (entry,) = WeightsLock.load(tmp_path / "weights.lock").weights
    assert [file.digest for file in entry.files] == [
        f"sha256:{hashlib.sha256(MODEL[name]).hexdigest()}" for name in ("config.json", "model.safetensors")
    ]
    weights = put(tmp_path, "config.json", "model.safetensors")
    verify(weights, tmp_path / "weights.lock")
    before, sent = (tmp_path / "weights.lock").stat().st_mtime_ns, hub.sent
    assert lock(hub, tmp_path, source)[0] == 0
    assert (tmp_path / "weights.lock").stat().st_mtime_ns == before
    assert hub.sent == sent, "what is there already is not downloaded again"


@pytest.mark.parametrize(("etag", "used"), [('"v1"', True), ('W/"v1"', False), (None, False)])
def test_an_https_file_is_identified_as_cog_does_it(hub, tmp_path, etag, used):
    """By its strong ETag, quotes and all; without one by its contents."""
    hub.etag = etag
    (tmp_path / "cog.yaml").write_text(STANZA.format(source=f"{{uri: '{hub.url}/plain/org/model/model.safetensors'}}"))
    (entry,) = make_lock(tmp_path / "cog.yaml", None, datetime.now(UTC)).weights
    contents = f"sha256:{hashlib.sha256(TENSORS).hexdigest()}"
    assert entry.sources[0].fingerprint == ('etag:"v1"' if used else contents)


def test_sources_are_written_as_cog_writes_them(hub, tmp_path):
    """Patterns sorted, and no @main: else Cog takes cog.yaml for changed and imports again."""
    source = "{uri: 'hf://org/model@main', include: [tokenizer.json, ' *.safetensors', config.json]}"
    code, output = lock(hub, tmp_path, source)
    assert code == 0, output
    (entry,) = WeightsLock.load(tmp_path / "weights.lock").weights
    assert entry.sources[0].uri == "hf://org/model"
    assert entry.sources[0].include == ("*.safetensors", "config.json", "tokenizer.json")


def test_a_small_file_that_was_damaged_on_the_way_is_noticed(hub, tmp_path):
    """The hub states no SHA-256 for it, but Git's id."""
    hub.damaged_small = "config.json"
    code, output = lock(hub, tmp_path, "{uri: 'hf://org/model'}")
    assert (code, "digest that the hub gives" in output) == (1, True), output


def test_one_repository_is_locked_into_a_file_with_the_files_that_serving_needs(hub, tmp_path):
    path = tmp_path / "some.lock"
    code, output = run(hub, tmp_path, "hf://org/code", "--name", "tiny", "--lock", str(path))
    assert code == 0, output
    (entry,) = WeightsLock.load(path).weights
    assert (entry.name, entry.target) == ("tiny", "/src/weights/tiny")
    assert [file.path for file in entry.files] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert entry.sources[0].include == ("config.json", "model.safetensors", "tokenizer.json")
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    assert run(hub, tmp_path, "hf://org/code", "--name", "tiny", "--lock", str(path))[0] == 0
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_one_folder_is_locked_into_a_file_and_another_model_s_lock_is_left_alone(hub, tmp_path):
    weights = put(tmp_path, "config.json", "model.safetensors")
    path = tmp_path / "tiny.lock"
    code, output = run(hub, tmp_path, str(weights), "--lock", str(path))
    assert code == 0, output
    assert verify(weights, path).name == "tiny"
    assert WeightsLock.load(path).weights[0].sources[0].uri == "file://./weights/tiny"
    code, output = run(hub, tmp_path, str(weights), "--lock", str(path), "--name", "other")
    assert (code, "is the lock of tiny, not of other" in " ".join(output.split())) == (1, True), output
