"""The example of docs/http-api.md runs as it stands, with the address of the test's door."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.gateway.door_server import ROOT

pytestmark = pytest.mark.server


def test_the_example_of_openai_s_api_prints_the_answer(chat_door):
    section = (ROOT / "docs" / "http-api.md").read_text("utf-8").partition("## OpenAI's API")[2]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    assert "http://127.0.0.1:8080/v1" in example
    code = example.replace("http://127.0.0.1:8080", chat_door.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "Name three colours."
