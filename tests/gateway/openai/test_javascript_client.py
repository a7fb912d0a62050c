"""The official JavaScript client, unmodified, against the door; it needs Node.js and npm's registry."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.server, pytest.mark.index]
PINNED = "openai@7.55.0"


def test_the_javascript_client_asks_streams_and_forces_a_tool(chat_door, tmp_path):
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(tmp_path), PINNED]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=200)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot fetch {PINNED}: {installed.stderr[-500:]}")
    script = shutil.copy(Path(__file__).with_name("client.mjs"), tmp_path)
    done = subprocess.run(["node", script, chat_door.url], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    text = '{"item": "tea", "count": 2}'
    assert json.loads(done.stdout) == {
        "whole": text,
        "streamed": text,
        "call": {"item": "tea", "count": 2},
        "finish_reason": "tool_calls",
        "has_usage": True,
        "refused": ["BadRequestError", "guided_json"],
    }
