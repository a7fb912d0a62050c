"""What the tests do on the playground."""

from __future__ import annotations

import json
from collections.abc import Sequence

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect


def fill(page: Page, question: str, columns: str = "['a', 'b']") -> None:
    """Replace the form's inputs; the columns are pasted."""
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("nlq").fill(question)
    paste(page, columns)


def paste(page: Page, text: str) -> None:
    """Paste a text into the field of columns, as the browser does it."""
    page.locator("#input-cols").evaluate(
        """(input, text) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text/plain", text);
            const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
            if (input.dispatchEvent(event)) input.value += text;
        }""",
        text,
    )


def expect_chips(page: Page, names: Sequence[str]) -> None:
    expect(page.locator(".chips li span")).to_have_text(list(names))


def wait_for_status(page: Page, status: str) -> None:
    expect(page.locator("#status")).to_have_attribute("data-status", status)


def copied(page: Page, button: str) -> str:
    """What a button copies."""
    page.wait_for_load_state()  # before it the scripts may not listen yet
    page.locator(button).click()
    expect(page.locator(button)).to_have_text("Copied")
    return str(page.evaluate("navigator.clipboard.readText()"))


def code_of(page: Page, language: str) -> str:
    page.get_by_role("tab", name=language, exact=True).click()
    return page.locator("#code").text_content() or ""


def run(page: Page) -> str:
    """Run and wait for the end; the prediction's id."""
    page.get_by_role("button", name="Run").click()
    wait_for_status(page, "succeeded")
    address = page.get_by_role("link", name="Permalink").get_attribute("href")
    assert address is not None
    return address.removeprefix("/p/")


def answer(page: Page) -> object:
    """The value of the indented answer."""
    return json.loads(page.locator("#pretty").text_content() or "")


def check_page(page: Page) -> None:
    """Whether axe-core finds nothing, and nothing is wider than the screen."""
    findings = Axe().run(page).response
    assert len(findings["passes"]) > 10, "axe-core has run"
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in findings["violations"]] == []
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]
