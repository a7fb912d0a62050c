"""Counts what axe-core finds on the door's pages in a real Chromium."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import Any, Final

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect, sync_playwright

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_IMPACTS: Final = ("critical", "serious", "moderate", "minor")
_SCREENS: Final[dict[str, dict[str, Any]]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 375, "height": 700}},
}


def find_chromium() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def axe_findings(url: str) -> dict[str, Any] | None:
    """Findings by screen and page, each by impact; None if there is no Chromium.

    Args:
        url: address of a door in front of a package with the Honeycomb task.
    """
    if (path := find_chromium()) is None:
        return None
    options = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox does not work for root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        try:
            return {name: _screen(browser, url, screen) for name, screen in _SCREENS.items()}
        finally:
            browser.close()


def _screen(browser: Browser, url: str, screen: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The findings on the playground after a prediction, and on the prediction's page."""
    page = browser.new_page(**screen)
    page.goto(url)
    page.get_by_label("nlq").fill("slowest traces")
    page.locator("#input-cols").fill("name, duration_ms")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#status")).to_have_attribute("data-status", "succeeded", timeout=20_000)
    found = {"playground": _count(page)}
    page.get_by_role("link", name="Permalink").click()
    expect(page.locator("#status")).to_have_attribute("data-status", "succeeded", timeout=20_000)
    return found | {"permalink": _count(page)}


def _count(page: Page) -> dict[str, int]:
    findings = Counter(one["impact"] for one in Axe().run(page).response["violations"])
    return {impact: findings[impact] for impact in _IMPACTS}
