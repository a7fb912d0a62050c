"""From a wrong answer to an accepted correction, in a real Chromium with a real Cog server."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from typer.testing import CliRunner

from gateway.corrections.command import app
from gateway.keys.key_file import KeyFile
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.open_app import bearer
from tests.gateway.pages.page_actions import answer, check_page, expect_chips, fill, run

pytestmark = pytest.mark.server
PHONE = {"viewport": {"width": 375, "height": 700}}
RIGHT = {"breakdowns": ["b"], "calculations": [{"op": "COUNT"}]}


def exported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    monkeypatch.setenv("GATEWAY_DATABASE", str(folder / "predictions.sqlite"))
    return [json.loads(line) for line in CliRunner().invoke(app, ["export"]).stdout.splitlines()]


def send(page: Page) -> None:
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_wrong_answer_is_corrected_accepted_by_an_admin_and_exported(
    open_keyed_page, keyed_gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
):
    page = open_keyed_page(extra_http_headers=bearer(keyed_gateway.keys["alice"]))
    fill(page, "how many by b?")
    expect(page.locator("#verdict")).to_be_hidden()
    prediction = run(page)
    given = page.locator("#text").text_content()
    page.get_by_role("button", name="Correct", exact=True).click()
    expect(page.get_by_label("Accept at once")).to_have_count(0)
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_label("The right answer").fill('{"breakdowns": ["c"]}')
    expect(page.locator("#wanted-error")).to_contain_text("breakdowns[0]")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_label("The right answer").fill(json.dumps(RIGHT, indent=4))
    expect(page.locator("#wanted-said")).to_have_text("The model can write this answer.")
    assert '"b"' in page.locator("#wanted-difference ins").all_text_contents()[0]
    assert '"a"' in page.locator("#wanted-difference del").all_text_contents()[0]
    page.get_by_label("Note").fill("b, not a")
    check_page(page)
    send(page)
    expect(page.locator("#verdict-said")).to_contain_text("Sent; an admin decides.")
    (kept,) = keyed_gateway.client.get("/v1/corrections").json()["results"]
    assert (kept["prediction"], kept["state"], kept["note"]) == (prediction, "proposed", "b, not a")
    assert (kept["owner"], kept["given"], kept["wanted"]) == ("alice", given, json.dumps(RIGHT))
    page.get_by_role("link", name="See all").click()
    card = page.locator(f"[data-id='{kept['id']}']")
    expect(card.get_by_role("button")).to_have_text(["Delete"])
    assert exported(keyed_gateway.folder, monkeypatch) == []

    with closing(KeyFile(keyed_gateway.folder / "keys.sqlite")) as file:
        admin = file.create("admin", is_admin=True)
    page = open_keyed_page("/corrections?state=proposed", extra_http_headers=bearer(admin))
    check_page(page)
    card = page.locator(f"[data-id='{kept['id']}']")
    expect(card).to_contain_text("alice")
    expect(card.locator("ins").first).to_contain_text('"b"')
    card.get_by_role("button", name="Accept").click()
    expect(page.locator("main")).to_contain_text("There are none.")
    (line,) = exported(keyed_gateway.folder, monkeypatch)
    assert (line["input"], line["output"]) == (kept["input"], json.dumps(RIGHT))
    assert (line["kind"], line["state"]) == ("correction", "accepted")


def test_a_good_answer_becomes_an_example_that_can_be_run_again(open_page, gateway: GatewayServer):
    page = open_page()
    fill(page, "an example?", "['x', 'y']")
    run(page)
    page.get_by_role("button", name="Add to examples").click()
    expect(page.get_by_label("The right answer")).to_be_hidden()
    page.get_by_label("Accept at once").check()
    send(page)
    page.get_by_role("link", name="See all").click()
    check_page(page)
    card = page.locator(".correction").first
    expect(card.locator(".status")).to_have_text("accepted")
    assert json.loads(card.locator(".difference").text_content())["breakdowns"] == ["x"]
    card.get_by_role("link", name="Run").click()
    expect(page.get_by_label("nlq")).to_have_value("an example?")
    expect_chips(page, ["x", "y"])


def test_a_permalink_takes_corrections_of_its_owner_only(open_page, open_keyed_page, gateway, keyed_gateway):
    created = gateway.create(nlq="how many?", cols="['a', 'b']")
    gateway.wait_for(created["id"], "succeeded")
    page = open_page(f"/p/{created['id']}")
    page.get_by_role("button", name="Report").click()
    page.get_by_label("Note").fill("wrong column")
    send(page)
    kept = gateway.client.get("/v1/corrections", params={"prediction": created["id"]}).json()["results"]
    assert [(one["kind"], one["wanted"], one["note"]) for one in kept] == [("report", None, "wrong column")]
    owned = keyed_gateway.create(nlq="how many?", cols="['a', 'b']")
    keyed_gateway.wait_for(owned["id"], "succeeded")
    stranger = open_keyed_page(f"/p/{owned['id']}")
    assert answer(stranger)["breakdowns"] == ["a"]
    expect(stranger.locator("#verdict")).to_have_count(0)
    bob = open_keyed_page(f"/p/{owned['id']}", extra_http_headers=bearer(keyed_gateway.keys["bob"]))
    expect(bob.locator("#verdict")).to_have_count(0)


def test_hostile_texts_are_text_in_corrections_too(open_page, gateway: GatewayServer):
    hostile = "<img src=x onerror=window.hit=1></pre>"
    created = gateway.create(nlq=hostile, cols="['a', 'b']")
    gateway.wait_for(created["id"], "succeeded")
    wanted = json.dumps(RIGHT | {"filters": [{"column": "a", "op": "=", "value": hostile}]})
    body = {"prediction": created["id"], "wanted": wanted, "note": hostile}
    assert gateway.client.post("/v1/corrections", json=body).status_code == 201
    page = open_page("/corrections", **PHONE)
    check_page(page)
    expect(page.locator(".correction").first).to_contain_text(hostile)
    assert page.evaluate("window.hit") is None
    assert page.locator("main img").count() == 0
