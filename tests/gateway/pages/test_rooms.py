"""The pages beside the playground: each has an address, and the navigation names them all."""

from __future__ import annotations

import subprocess

import pytest
from playwright.sync_api import expect

from tests.gateway.gateway_server import MODEL, GatewayServer
from tests.gateway.pages.page_actions import check_page, code_of

pytestmark = pytest.mark.server
ROOMS = {"Playground": "/", "Examples": "/examples", "Versions": "/versions", "API": "/api", "README": "/readme"}


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_has_an_address_and_is_marked_in_the_navigation(open_page, name):
    page = open_page("/examples" if name != "Examples" else "/")
    rooms = page.get_by_role("navigation", name="Pages")
    rooms.get_by_role("link", name=name).click()
    page.wait_for_url(f"**{ROOMS[name]}")
    expect(rooms.locator("[aria-current=page]")).to_have_text(name)
    check_page(page)


def test_the_page_of_the_api_has_addresses_inputs_and_a_call_that_works(open_page, gateway: GatewayServer):
    page = open_page("/api")
    text = page.locator("main").inner_text()
    for part in (f"OPENAI_BASE_URL={gateway.url}/v1", f"REPLICATE_BASE_URL={gateway.url}\n", MODEL, "1 to 2,500."):
        assert part in text
    subprocess.run(["bash", "-c", code_of(page, "curl")], capture_output=True, check=True)
    assert gateway.newest()["input"]["nlq"] == "EMISSING slowest traces"


def test_the_readme_is_shown_as_markdown_and_loads_no_pictures(open_page):
    readme = open_page("/readme").locator("#readme")
    expect(readme.locator("h3")).to_have_text("About")
    expect(readme.locator("p")).to_have_text("A model, see the page shot.")
    expect(readme.locator("strong")).to_have_text("model")
    expect(readme.locator("a, img")).to_have_count(0)
