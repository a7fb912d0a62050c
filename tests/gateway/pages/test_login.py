"""The pages of a gateway that asks for keys, in a real Chromium: a browser gives its key once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from tests.gateway.gateway_server import GatewayServer
from tests.gateway.pages.page_actions import answer, code_of, copied, fill, run, wait_for_status

pytestmark = pytest.mark.server


@pytest.fixture
def page(open_keyed_page, keyed_gateway: GatewayServer) -> Page:
    """The playground of alice, who has given her key."""
    page = open_keyed_page(permissions=["clipboard-read", "clipboard-write"])
    give(page, "dk_wrong")
    expect(page.get_by_role("alert")).to_contain_text("unknown or was revoked")
    give(page, keyed_gateway.keys["alice"])
    expect(page).to_have_url(f"{keyed_gateway.url}/")
    return page


def give(page: Page, key: str) -> None:
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Continue").click()


def test_after_the_login_a_prediction_runs_and_its_link_is_for_everybody(page, open_keyed_page, keyed_gateway):
    fill(page, "how many?")
    prediction = run(page)
    assert answer(page)["filters"][0]["value"] == "how many?"
    page.get_by_role("link", name="Permalink").click()
    assert answer(page)["filters"][0]["value"] == "how many?"
    assert copied(page, "#share") == f"{keyed_gateway.url}/p/{prediction}"
    colleague = open_keyed_page(f"/p/{prediction}")  # a window of its own, without a key
    assert answer(colleague)["filters"][0]["value"] == "how many?"


def test_who_has_only_the_link_follows_a_running_prediction(open_keyed_page, keyed_gateway, held):
    created = keyed_gateway.create(nlq="hold", cols="a")
    page = open_keyed_page(f"/p/{created['id']}")
    wait_for_status(page, "processing")
    held.unlink()
    wait_for_status(page, "succeeded")
    assert answer(page)["filters"][0]["value"] == "hold"
    expect(page.locator("#more-figures")).to_contain_text("Model passes")
    expect(page.locator("#page-error")).to_be_hidden()


def test_the_code_reads_the_key_from_the_environment(page, keyed_gateway):
    fill(page, "how many?")
    env = {**os.environ, "GATEWAY_KEY": keyed_gateway.keys["alice"]}
    for language, command in (("curl", ["bash", "-c"]), ("Python", [sys.executable, "-c"])):
        code = code_of(page, language)
        assert keyed_gateway.keys["alice"] not in code
        done = subprocess.run([*command, code], capture_output=True, text=True, check=True, env=env)
        output = "".join(json.loads(done.stdout)["output"]) if language == "curl" else done.stdout
        assert json.loads(output)["filters"][0]["value"] == "how many?"
    assert "auth: process.env.GATEWAY_KEY }" in code_of(page, "JavaScript")
