"""The official JavaScript client, unmodified, against the door; it needs Node.js and npm's registry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

pytestmark = [pytest.mark.server, pytest.mark.index]
PINNED = "openai@7.55.0"


def leave_out(reason: str) -> NoReturn:
    """Skip the test; fail it where the JavaScript client is required."""
    pytest.fail(reason) if os.environ.get("REQUIRE_NPM") else pytest.skip(reason)


def test_the_javascript_client_asks_streams_and_forces_a_tool(chat_door, tmp_path):
    npm = shutil.which("npm")
    if npm is None:
        leave_out("npm is not installed")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(tmp_path), PINNED]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=200)
    if installed.returncode != 0:
        leave_out(f"npm cannot fetch {PINNED}: {installed.stderr[-500:]}")
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
