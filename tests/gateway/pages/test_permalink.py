"""The page of one prediction in a real Chromium."""

from __future__ import annotations

import json
import subprocess

import pytest
from playwright.sync_api import expect

from tests.gateway.gateway_server import GatewayServer
from tests.gateway.pages.page_actions import answer, code_of, expect_chips
from tests.gateway.started_cog import SLOWEST

pytestmark = pytest.mark.server


def test_the_page_has_all_that_is_known_and_tweak_takes_the_inputs_along(open_page, gateway: GatewayServer):
    created = gateway.create(nlq="how <many>?", cols="['x', 'y']", max_tokens=300)
    done = gateway.wait_for(created["id"], "succeeded")
    page = open_page(f"/p/{created['id']}")
    assert page.url == created["urls"]["web"]
    page.get_by_text("More figures").click()
    text = page.locator("main").inner_text()
    for part in ("how <many>?", "['x', 'y']", "300", done["version"], "Weights digest", "Model passes"):
        assert part in text
    assert answer(page)["filters"][0]["value"] == "how <many>?"
    expect(page.get_by_role("heading", level=1)).to_have_text("how <many>?")
    assert page.title() == "how <many>?"
    expect(page.get_by_text("created by a different version")).to_have_count(0)
    assert json.loads(subprocess.run(["bash", "-c", code_of(page, "curl")], capture_output=True, check=True).stdout)[
        "input"
    ] == {"nlq": "how <many>?", "cols": "['x', 'y']", "max_tokens": 300}
    page.get_by_role("link", name="Tweak").click()
    expect(page.get_by_label("nlq")).to_have_value("how <many>?")
    expect_chips(page, ["x", "y"])
    expect(page.locator("#input-max_tokens")).to_have_value("300")


def test_input_and_prediction_are_shown_as_json_too(open_page, gateway: GatewayServer):
    created = gateway.create(nlq="how many?", cols="a")
    done = gateway.wait_for(created["id"], "succeeded")
    page = open_page(f"/p/{created['id']}")
    page.locator("#tab-json").click()
    assert json.loads(page.locator("#input-json").text_content() or "") == done["input"]
    page.locator("#tab-prediction").click()
    del done["metrics"]["token_trace"]
    assert json.loads(page.locator("#prediction-json").text_content() or "") == done


def test_a_failed_prediction_says_why(open_page, gateway: GatewayServer):
    created = gateway.create(nlq=" ", cols="a")
    gateway.wait_for(created["id"], "failed")
    page = open_page(f"/p/{created['id']}")
    expect(page.locator("#prediction-error")).to_contain_text("nlq: is blank")
    expect(page.get_by_role("heading", level=1)).to_have_text("a")


def test_delete_asks_and_then_deletes(open_page, gateway: GatewayServer):
    created = gateway.create(nlq="how many?", cols="a")
    gateway.wait_for(created["id"], "succeeded")
    page = open_page(f"/p/{created['id']}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Keep").click()
    assert gateway.get(created["id"])["status"] == "succeeded"
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url(f"{gateway.url}/")
    assert gateway.client.get(f"/v1/predictions/{created['id']}").status_code == 404


def test_an_unknown_prediction_has_a_page_that_says_so(gateway: GatewayServer):
    response = gateway.client.get("/p/<script>alert(1)")
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("text/html")
    assert "There is no such prediction" in response.text
    assert "<script>alert" not in response.text


def test_a_running_prediction_is_cancelled_before_it_is_deleted(gateway: GatewayServer):
    created = gateway.create(nlq=SLOWEST, cols="a")
    address = f"/v1/predictions/{created['id']}"
    assert gateway.client.delete(address).status_code == 204
    assert gateway.client.get(address).status_code == 404
    assert gateway.client.delete(address).status_code == 404
