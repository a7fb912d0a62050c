"""What callers and models write is text on every page, and the pages are accessible."""

from __future__ import annotations

import html

import pytest
from playwright.sync_api import Page, expect

from tests.gateway.gateway_server import GatewayServer
from tests.gateway.pages.page_actions import answer, check_page, expect_chips, fill, run

pytestmark = pytest.mark.server
IMAGE = "<img src=x onerror=window.hit=1>"
HOSTILE = f"<script>window.hit=1</script>{IMAGE}<a href='javascript:window.hit=1'>x</a></pre>"
PHONE = {"viewport": {"width": 375, "height": 700}}
DARK = {"color_scheme": "dark"}


def check_harmless(page: Page) -> None:
    assert page.evaluate("window.hit") is None
    assert page.locator("main :is(img, script, a[href^='javascript'])").count() == 0


def test_hostile_inputs_and_outputs_are_text(open_page, gateway: GatewayServer):
    page = open_page()
    fill(page, HOSTILE, f'["{IMAGE}", "b"]')
    expect_chips(page, [IMAGE, "b"])
    prediction = run(page)
    assert answer(page)["breakdowns"] == [IMAGE]
    check_harmless(page)
    page.goto(f"{gateway.url}/p/{prediction}")
    assert answer(page)["filters"][0]["value"] == HOSTILE
    check_harmless(page)
    page.goto(f"{gateway.url}/?tweak={prediction}")
    expect(page.get_by_label("nlq")).to_have_value(HOSTILE)
    expect_chips(page, [IMAGE, "b"])
    check_harmless(page)


def test_only_own_files_may_be_scripts_and_none_is_inline(gateway: GatewayServer):
    created = gateway.create(nlq=HOSTILE, cols="a")
    for path, status in (("/", 200), (f"/p/{created['id']}", 200), ("/p/unknown", 404)):
        response = gateway.client.get(path)
        assert response.status_code == status
        assert response.headers["content-security-policy"].startswith("default-src 'self';")
        assert response.headers["x-content-type-options"] == "nosniff"
        scripts = response.text.split("<script")[1:]
        assert scripts
        for script in scripts:
            assert ' src="/static/' in script.partition(">")[0]
        assert " style=" not in response.text
        assert " onclick" not in response.text
        assert HOSTILE not in html.unescape(response.text.replace("&lt;", "").replace("&#39;", ""))


def test_static_files_are_asked_for_again_only_when_they_changed(gateway: GatewayServer):
    first = gateway.client.get("/static/base.css")
    assert first.headers["content-type"] == "text/css; charset=utf-8"
    again = gateway.client.get("/static/base.css", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name in ("none.css", "..%2fpage_routes.py", "../page_routes.py"):
        assert gateway.client.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize("options", [{}, DARK | PHONE], ids=["light", "dark phone"])
def test_pages_are_accessible_and_fit_the_screen(open_page, gateway: GatewayServer, options):
    page = open_page(**options)
    page.get_by_text("More settings").click()
    fill(page, "how many?")
    prediction = run(page)
    page.get_by_role("tab", name="Tokens").click()
    page.get_by_label("max_tokens").fill("0")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#input-max_tokens-error")).to_be_visible()
    check_page(page)
    page.goto(f"{gateway.url}/p/{prediction}")
    check_page(page)
    page.get_by_role("button", name="Delete").click()
    check_page(page)


def test_dark_and_light_follow_the_system_or_the_choice(open_page):
    page = open_page(**DARK)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light
