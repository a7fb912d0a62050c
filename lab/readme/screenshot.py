"""Takes a picture of the playground in a real Chromium, with an answer of the default model and its tokens."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from lab.bench.gateway_servers import served_playground

LIMIT: Final = 150_000  # bytes of the picture
_WARM_UP: Final = ("Slowest traces", "Latency by route", "Errors in the last hour")
_EXAMPLE: Final = "Slow requests of one user"  # its answer has tokens of several origins
_SECONDS: Final = 600  # for the start and for an answer
_SHOWN_URL: Final = "http://127.0.0.1:8080"  # what the code says on everybody's machine
_SIZE: Final[ViewportSize] = {"width": 1200, "height": 740}


class PictureError(Exception):
    """The picture cannot be taken."""


def take_screenshot(path: Path) -> None:
    """Serve the default model, ask it, and write a PNG of the page.

    Raises:
        PictureError: there is no Chromium, or the picture is too large.
        ServerFailedError: the server does not start.
    """
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise PictureError("there is no Chromium on PATH: apt-get install chromium")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox does not work for root
    with (
        tempfile.TemporaryDirectory() as folder,
        served_playground(Path(folder), "auto", public_url=_SHOWN_URL, seconds=_SECONDS) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=options)
        page = browser.new_page(viewport=_SIZE, color_scheme="light", reduced_motion="reduce")
        page.goto(address)
        _ask(page)
        path.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path)
        browser.close()
    if path.stat().st_size > LIMIT:
        raise PictureError(f"{path} has {path.stat().st_size:,} bytes, more than {LIMIT:,}; take a smaller page")


def _ask(page: Page) -> None:
    for example in (*_WARM_UP, _EXAMPLE):
        page.get_by_role("button", name=example).click()
        page.get_by_role("button", name="Run").click()
        expect(page.locator("#live")).to_contain_text("Answered in", timeout=1000 * _SECONDS)
    page.get_by_role("tab", name="Tokens").click()
    page.evaluate("document.activeElement.blur()")
