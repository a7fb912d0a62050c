"""The page of kept predictions in a real Chromium: the newest or the most doubtful first, and one's own only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.predictions.prediction import Prediction, Status, new_id, now
from gateway.predictions.store import Store
from lab.endurance.cog_process import CogServer
from tests.gateway.gateway_server import MODEL, GatewayServer
from tests.gateway.open_app import make_keys
from tests.gateway.pages.conftest import OpenPage, pages_of
from tests.gateway.pages.page_actions import check_page

pytestmark = pytest.mark.server


def prediction(question: str, lowest: float | None, owner: str = "alice") -> Prediction:
    confidence = {"fields": {"/limit": lowest}, "lowest": lowest, "doubtful_below": 0.8, "calibrated": True}
    return Prediction(
        new_id(),
        MODEL,
        "0" * 64,
        {"nlq": question, "cols": "['a']"},
        now(),
        Status.SUCCEEDED,
        output=['{"limit": ', "5}"],
        completed_at=now(),
        metrics={} if lowest is None else {"confidence": confidence},
        owner=owner,
    )


KEPT = [
    prediction("sure?", 0.97),
    prediction("<b>doubtful</b>?", 0.42),
    prediction("his secret?", 0.1, "bob"),
    prediction("unknown?", None),
    *(prediction(f"usual {n}?", 0.99) for n in range(50)),
]


@pytest.fixture(scope="module")
def server(cog: CogServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    """A gateway that has answered alice and bob before."""
    folder = tmp_path_factory.mktemp("history")

    async def keep() -> None:
        store = Store(folder / "predictions.sqlite")
        await store.open()
        await store.save(*KEPT)
        await store.close()

    with ThreadPoolExecutor() as pool:  # Playwright's event loop runs in this thread
        pool.submit(asyncio.run, keep()).result()
    with GatewayServer([cog.url], folder, keys=make_keys(folder, "alice", "bob"), KEYS="required") as server:
        yield server


@pytest.fixture
def open_history(browser: Browser, server: GatewayServer) -> Iterator[OpenPage]:
    with pages_of(browser, server) as open_path:

        def open_for(name: str) -> Page:
            page = open_path("/history")
            page.get_by_label("Key").fill(server.keys[name])
            page.get_by_role("button", name="Continue").click()
            page.goto(f"{server.url}/history")
            return page

        yield open_for


def titles(page: Page) -> list[str]:
    return page.locator(".history div > a").all_text_contents()


def test_the_newest_come_first_and_more_leads_to_the_others(open_history, server: GatewayServer):
    page = open_history("alice")
    assert titles(page) == [f"usual {n}?" for n in reversed(range(50))]
    check_page(page)
    page.get_by_role("link", name="More").click()
    expect(page.locator(".history li")).to_have_count(3)
    assert titles(page) == ["unknown?", "<b>doubtful</b>?", "sure?"]
    assert page.locator(".share").all_inner_texts()[0] == ""
    expect(page.get_by_role("link", name="More")).to_have_count(0)
    page.get_by_role("link", name="unknown?", exact=True).click()
    expect(page).to_have_url(f"{server.url}/p/{KEPT[3].id}")


def test_doubtful_answers_come_first_and_are_corrected_from_there(open_history, server: GatewayServer):
    page = open_history("alice")
    page.get_by_role("link", name="Doubtful first").click()
    expect(page.get_by_role("link", name="Doubtful first")).to_have_attribute("aria-current", "page")
    assert titles(page)[:3] == ["<b>doubtful</b>?", "sure?", "usual 49?"]
    expect(page.locator(".share").first).to_have_text("Doubtful: 42 %")
    expect(page.locator(".share").nth(1)).to_have_text("Least sure: 97 %")
    check_page(page)
    page.get_by_role("link", name="More").click()
    assert titles(page) == ["usual 1?", "usual 0?"]
    page.go_back()
    page.get_by_role("link", name="Correct “<b>doubtful</b>?”").click()
    expect(page).to_have_url(f"{server.url}/p/{KEPT[1].id}#correct")
    expect(page.get_by_role("dialog", name="Correct this answer")).to_be_visible()


def test_a_key_does_not_see_the_predictions_of_another(open_history, server: GatewayServer):
    page = open_history("bob")
    assert titles(page) == ["his secret?"]
    page.get_by_role("link", name="Doubtful first").click()
    assert titles(page) == ["his secret?"]
    for path in ("/history", "/history?sort=doubtful", "/history?sort=doubtful&surer=0&older=999"):
        assert "his secret?" not in server.client.get(path).text, "alice asks"
    stranger = server.client.get("/history", headers={"Authorization": ""})
    assert (stranger.status_code, stranger.headers["location"]) == (303, "/login")


@pytest.mark.parametrize(
    "query", ["older=x", "older=²", "sort=doubtful&surer=x&older=1", "sort=x&older=99999999999999999999"]
)
def test_a_wrong_address_shows_the_first_page(server: GatewayServer, query: str):
    assert server.client.get(f"/history?{query}").status_code == 200
