"""A real Chromium, and pages that report every script error and every request to another server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.gateway.gateway_server import GatewayServer

REFUSED = "Failed to load resource"  # the console's note about an answer such as 404, which some tests want
OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser of one module of tests: Playwright's event loop would be in the way of asynchronous tests."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        text = "no Chromium on PATH: apt-get install chromium"
        pytest.fail(text) if os.environ.get("REQUIRE_CHROMIUM") else pytest.skip(text)
    # Chromium's sandbox does not work for root.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, gateway: GatewayServer) -> Iterator[OpenPage]:
    with pages_of(browser, gateway) as open_path:
        yield open_path


@pytest.fixture
def open_keyed_page(browser: Browser, keyed_gateway: GatewayServer) -> Iterator[OpenPage]:
    """Opens pages of a gateway that asks for keys."""
    with pages_of(browser, keyed_gateway) as open_path:
        yield open_path


@contextmanager
def pages_of(browser: Browser, gateway: GatewayServer) -> Iterator[OpenPage]:
    """Opens a path of the gateway in a new window; options are those of Playwright's `new_context`."""
    contexts = []
    troubles: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and REFUSED not in message.text:
            troubles.append(message.text)

    def open_path(path: str = "/", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", listen)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: troubles.append(request.url) if not _is_own(request.url, gateway) else None)
        page.goto(gateway.url + path)
        return page

    yield open_path
    for context in contexts:
        context.close()
    assert troubles == []


def _is_own(url: str, gateway: GatewayServer) -> bool:
    return url.startswith(f"{gateway.url}/")
