"""scripts/push to a model hub with the real client: complete, resumable, and safe, with true messages."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from serving.weights import lock_files, set_digest
from tests.pipeline.publish.locked_weights import lock, locked_weights, record
from tests.pipeline.publish.upload_hub import UploadHub

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "hf_" + "aB3" * 11 + "z"
REPO = "org/tiny"


@pytest.fixture
def hub():
    server = UploadHub(TOKEN)
    yield server
    server.close()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return locked_weights(tmp_path)


def start(hub: UploadHub, weights: Path, *options: str, token: str = TOKEN, repo: str = REPO, **environment: str):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    home = str(weights.parent.parent / "hf-home")
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": home, "HF_HUB_DISABLE_XET": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "push"), f"hf://{repo}", "--weights", str(weights), *options],
        env=clean | settings | ({"HF_TOKEN": token} if token else {}) | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def push(hub: UploadHub, weights: Path, *options: str, **settings: str) -> tuple[int, str]:
    process = start(hub, weights, *options, **settings)
    output, _ = process.communicate(timeout=200)
    assert TOKEN not in output
    assert "Traceback" not in output, output
    return process.returncode, output


def assert_whole(hub: UploadHub, weights: Path) -> None:
    there = hub.repos[REPO]
    for path in weights.iterdir():
        assert there[path.name] == path.read_bytes(), path.name
    assert set(there) == {path.name for path in weights.iterdir()} | {".gitattributes", "README.md"}


def test_a_private_repository_gets_all_files_and_a_card_in_one_commit(hub, weights):
    record(weights)
    code, output = push(hub, weights)
    assert code == 0, output
    assert_whole(hub, weights)
    assert hub.private[REPO]
    assert len(hub.commits[REPO]) == 2
    assert hub.commits[REPO][-1] in output
    received = hub.received
    code, output = push(hub, weights)
    assert code == 0, output
    assert (hub.received, len(hub.commits[REPO])) == (received, 2), "nothing is sent twice, and nothing committed"


def test_a_dry_run_prints_what_would_be_done_and_does_nothing(hub, weights):
    code, output = push(hub, weights, "--dry-run")
    assert code == 0, output
    assert f"create hf://{REPO}, private" in output
    for path in weights.iterdir():
        assert f"send  {path.name}  {path.stat().st_size:,} bytes" in output
    assert hub.repos == {}
    assert not [request for request in hub.requests if request.startswith(("POST", "PUT"))]
    hub.create(REPO, private=True, files={"config.json": (weights / "config.json").read_bytes(), "notes.md": b"mine"})
    output = push(hub, weights, "--dry-run")[1]
    assert "there config.json, the same" in output
    assert "keep  notes.md" in output
    assert "send  config.json" not in output
    code, output = push(hub, weights, "--dry-run", token="")
    assert (code, "without a login the hub was not asked" in output) == (0, True)


def test_pushes_survive_busy_hubs_and_broken_connections(hub, weights):
    hub.answers = {"preupload": [(503, {})], "batch": [(429, {"retry-after": "0"})], "/commit/": [(500, {})]}
    hub.faults.statuses = [(502, {"retry-after": "0"})]
    hub.upload_cuts = 2
    hub.lost_answers = 1
    code, output = push(hub, weights)
    assert code == 0, output
    assert_whole(hub, weights)
    assert len(hub.commits[REPO]) == 2, "a commit whose answer was lost is not made twice"


def test_an_interrupted_push_continues_with_the_remaining_files(hub, tmp_path):
    """Complete files are not sent again, and readers never see a partial model."""
    weights = locked_weights(tmp_path, size=1_500_000)
    (weights / "model.safetensors").rename(weights / "model-00001-of-00002.safetensors")
    other = locked_weights(tmp_path / "other", size=1_600_000)
    (other / "model.safetensors").rename(weights / "model-00002-of-00002.safetensors")
    lock(weights)
    hub.pause = 0.4
    rng, kills = random.Random(0), 0
    while kills < 8 and not hub.objects:
        process = start(hub, weights)
        before, enough = hub.received, rng.randrange(400_000 * kills + 1, 400_000 * kills + 400_000)
        deadline = time.monotonic() + 60
        while process.poll() is None and hub.received - before < enough and time.monotonic() < deadline:
            time.sleep(0.005)
        assert process.poll() is None, process.communicate()[0]
        process.kill()
        process.communicate()
        time.sleep(0.3)  # the hub still reads data in transit
        kills += 1
        assert len(hub.commits.get(REPO, [])) <= 1, "nothing is committed before all is there"
    hub.pause = 0.0
    (sent_whole,) = map(len, hub.objects.values())
    before = hub.received
    code, output = push(hub, weights)
    assert code == 0, output
    assert kills >= 3, "killed too rarely to show anything"
    assert_whole(hub, weights)
    large = sum(path.stat().st_size for path in weights.iterdir() if path.stat().st_size >= 10_000)
    assert hub.received - before <= large - sent_whole + 1_000


@pytest.mark.parametrize(
    ("status", "path", "named"),
    [
        (401, "/api/repos/create", "hf auth login"),
        (402, "batch", "payment"),
        (403, "preupload", "may not write to org (403)"),
        (404, "/commit/", "is not there, or your login may not see it"),
        (409, "/commit/", "is being changed by somebody else (409)"),
        (412, "/commit/", "was changed while this was sending (412)"),
        (418, "/commit/", "the hub answered 418"),
    ],
)
def test_the_error_of_each_refusal_says_what_to_do(hub, weights, status, path, named):
    hub.answers = {path: [(status, {})] * 9}
    code, output = push(hub, weights)
    assert code == 1
    assert named in " ".join(output.split())
    assert "request" not in output.lower(), "the library's message, with ids and addresses, is not passed on"


@pytest.mark.parametrize(
    ("answer", "named"),
    [(None, "set HF_HUB_DISABLE_XET=1"), (403, "may not write to org (403)")],
    ids=["no xet", "403"],
)
def test_xet_is_tried_and_its_refusals_are_reported(hub, weights, answer, named):
    """The library uses it for large files on the real hub; the tests' hub has no such storage."""
    if answer is not None:
        hub.answers = {"xet-write-token": [(answer, {})] * 20}
    code, output = push(hub, weights, HF_HUB_DISABLE_XET="0")
    assert (code, hub.received) == (1, 0)
    assert named in " ".join(output.split())


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_stays_busy_is_an_error_with_a_remedy(hub, weights, status):
    hub.faults.statuses = [(status, {"retry-after": "0"})] * 99
    code, output = push(hub, weights)
    assert code == 1
    assert f"the hub answered {status}, 8 times; " in " ".join(output.split())


def test_a_missing_or_wrong_login_is_an_error(hub, weights):
    assert "you are not logged in to the model hub: run `hf auth login`" in push(hub, weights, token="")[1]
    assert "does not take your login (401)" in push(hub, weights, token="hf_wrong")[1]
    code, output = push(hub, weights, repo="others/tiny")
    assert (code, "may not write to others (403)" in output) == (1, True)


def test_visibility_is_never_changed_without_an_option(hub, weights):
    hub.create(REPO, private=False)
    code, output = push(hub, weights)
    assert (code, "already and public: give --public if you mean that" in output) == (1, True)
    assert push(hub, weights, "--public")[0] == 0
    hub.private[REPO] = True
    code, output = push(hub, weights, "--public")
    assert (code, "and private, so --public changes nothing" in output) == (1, True)


def test_a_repository_with_other_weights_is_refused(hub, weights):
    hub.create(REPO, private=True, files={"model-00001-of-00002.safetensors": b"old" * 9_000})
    code, output = push(hub, weights)
    assert code == 1
    assert "has other weights: model-00001-of-00002.safetensors" in output


def test_an_edited_card_is_kept_and_a_generated_one_is_updated(hub, weights):
    assert push(hub, weights)[0] == 0
    ours = hub.repos[REPO]["README.md"]
    record(weights)
    assert push(hub, weights)[0] == 0
    renewed = hub.repos[REPO]["README.md"]
    assert renewed != ours and b"maker/base-7b" in renewed
    edited = renewed.replace(b"# tiny", b"# My own words")
    hub.repos[REPO]["README.md"] = edited
    weights.with_name("tiny.prepare.json").unlink()
    assert "keep  README.md" in push(hub, weights, "--dry-run")[1]
    assert push(hub, weights)[0] == 0
    assert hub.repos[REPO]["README.md"] == edited


def test_pushed_files_are_fetched_unchanged(hub, weights, tmp_path):
    assert push(hub, weights)[0] == 0
    hub.token = None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fetch"), f"hf://{REPO}", str(tmp_path / "back")],
        env=environment | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "back" / "source.json").unlink()
    names = {path.name for path in weights.iterdir()}
    back = [file for file in lock_files(tmp_path / "back") if file.path in names]
    assert set_digest(back) == set_digest(lock_files(weights))


def test_the_card_s_metadata_is_yaml_that_the_hub_reads(hub, weights):
    record(weights)
    assert push(hub, weights)[0] == 0
    _, metadata, _ = hub.repos[REPO]["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(metadata) == {
        "pipeline_tag": "text-generation",
        "base_model": "maker/base-7b",
        "tags": ["cog", "awq"],
    }
