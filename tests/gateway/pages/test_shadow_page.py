"""What a candidate answers otherwise, side by side, in a real Chromium with two real Cog servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from lab.endurance.cog_process import CogServer
from tests.cog.tiny_weights import make_tiny_weights
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.pages.conftest import pages_of
from tests.gateway.pages.page_actions import check_page, fill, run

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogServer]:
    """A server with the same inputs whose engine writes the first words of the prompt, and no question."""
    folder = tmp_path_factory.mktemp("candidate")
    env = make_tiny_weights(folder) | {"ENGINE": "fake"}
    with CogServer("predict.py:Predictor", env=env, log=folder / "cog.log") as server:
        yield server


def test_the_candidate_s_other_answer_stands_beside_the_served_one(
    browser: Browser, cog: CogServer, candidate: CogServer, tmp_path: Path
):
    settings = {"SHADOW": candidate.url, "SHADOW_SHARE": 1, "SHADOW_NAME": "tiny-2"}
    with GatewayServer([cog.url], tmp_path, **settings) as gateway, pages_of(browser, gateway) as open_page:
        page = open_page()
        fill(page, "is <b>this</b> an example?", "['x', 'y']")
        first = run(page)
        page.get_by_role("button", name="Add to examples").click()
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("link", name="Permalink")).not_to_have_attribute("href", f"/p/{first}")
        page.get_by_role("link", name="Versions").click()
        page.get_by_role("link", name="Where the candidate tiny-2 answers something else").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Candidate tiny-2")
        for _ in range(600):  # the candidate may still answer
            if page.locator(".pair").count() == 2:
                break
            page.wait_for_timeout(100)
            page.reload()
        check_page(page)
        expect(page.locator(".pair .tag")).to_have_count(1)
        pair = page.locator(".pair").first
        expect(pair.locator(".tag")).to_have_text("example")
        expect(pair).to_contain_text("is <b>this</b> an example?")
        served, other = (json.loads(pair.locator(place).text_content() or "") for place in (".given", ".answer"))
        assert served["filters"][0]["value"] == "is <b>this</b> an example?"
        assert other != served
        assert any("is <b>this" in line for line in pair.locator(".given del").all_text_contents())
        assert pair.locator(".given ins, .answer del").count() == 0
        pair.get_by_role("heading", level=2).get_by_role("link").click()
        page.get_by_role("button", name="Correct", exact=True).wait_for()
