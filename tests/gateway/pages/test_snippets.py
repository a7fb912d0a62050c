"""The code beside the form is run as it is shown, and makes the call that the form describes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.gateway.door_server import MODEL, DoorServer
from tests.gateway.pages.page_actions import fill

pytestmark = pytest.mark.server
QUESTION = 'it\'s "quoted", $HOME `id` \\ é 😀\nnext line'


@pytest.fixture
def code_of(open_page):
    page = open_page()
    fill(page, QUESTION)

    def read(language: str) -> str:
        page.get_by_role("tab", name=language, exact=True).click()
        return page.locator("#code").text_content()

    return read


def inputs() -> dict[str, str]:
    return {"nlq": QUESTION, "cols": '["a", "b"]'}


def test_curl_runs(code_of, door: DoorServer):
    done = subprocess.run(["bash", "-c", code_of("curl")], capture_output=True, text=True, check=True)
    prediction = json.loads(done.stdout)
    assert (prediction["status"], prediction["input"]) == ("succeeded", inputs())


def test_python_runs(code_of, door: DoorServer):
    code = code_of("Python")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [newest, *_] = door.client.get("/v1/predictions").json()["results"]
    assert newest["input"] == inputs()
    assert done.stdout == "".join(newest["output"])


def test_python_with_openai_s_client_runs(code_of, door: DoorServer):
    code = code_of("Python (openai)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [newest, *_] = door.client.get("/v1/predictions").json()["results"]
    assert newest["input"] == inputs()
    assert done.stdout == "".join(newest["output"])


def test_javascript_has_the_model_and_the_inputs(code_of, door: DoorServer):
    code = code_of("JavaScript")
    assert json.loads(code.partition("const input = ")[2].partition(";\nfor await")[0]) == inputs()
    assert f'replicate.stream("{MODEL}", {{ input }})' in code


def test_cog_predict_gets_each_input_as_one_word(code_of):
    code = code_of("cog predict").replace("cog predict", "printf '%s\\0'")
    words = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split("\0")
    assert words[:-1] == ["-i", f"nlq={QUESTION}", "-i", 'cols=["a", "b"]']
