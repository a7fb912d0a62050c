"""The playground of a chat model in a real Chromium: several turns, and answers in Markdown that stay harmless."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence

import pytest
from playwright.sync_api import Page, expect

from tests.gateway.fake_cog import FakeCog
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.pages.conftest import OpenPage, pages_of
from tests.gateway.pages.page_actions import check_page, code_of, run, wait_for_status

pytestmark = pytest.mark.server
INPUTS = {
    "prompt": {"type": "string", "default": ""},
    "messages": {"type": "array", "items": {"type": "object"}, "default": []},
    "system_prompt": {"type": "string", "default": ""},
    "temperature": {"type": "number", "default": 0.7},
}
MARKDOWN = """# Caches

A **fast** and *small* `store`, see [the page](https://example.org/a?b=1&c=2). 2 &lt; 3.

- one
  1. nested
- two

```python
print("<b>")
```

| name | size |
|---|---:|
| L1 | 32 kB |
"""
INJECTION = """<script>window.hit = 1</script>

<img src=x onerror="window.hit = 1"> <a href="javascript:window.hit=1">raw</a> &lt;svg onload=window.hit=1&gt;

[one](javascript:window.hit=1) [two](JaVaScRiPt&colon;window.hit=1) [three](data:text/html,<svg onload=window.hit=1>)
[four](https://example.org/"onmouseover="window.hit=1) ![five](x" onerror="window.hit=1)

![six](https://example.org/spy.png "onload=window.hit=1") <javascript:window.hit=1> `<img src=x onerror=window.hit=1>`

```"><script>window.hit=1</script>
</code></pre><script>window.hit = 1</script>
```

| <script>window.hit=1</script> |
|---|
| <iframe srcdoc="<script>top.hit=1</script>"> |
"""


@pytest.fixture(scope="module")
def cog() -> Iterator[FakeCog]:
    """A chat model that answers what a test tells it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    cog = FakeCog(properties=INPUTS)
    asyncio.run_coroutine_threadsafe(cog.listen(0), loop).result(60)
    yield cog
    asyncio.run_coroutine_threadsafe(_end(cog), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


async def _end(cog: FakeCog) -> None:
    """Stop the server, and its answers that a test holds back."""
    await cog.stop()
    held = asyncio.all_tasks() - {asyncio.current_task()}
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


@pytest.fixture(scope="module")
def chat_gateway(cog: FakeCog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    with GatewayServer([cog.url], tmp_path_factory.mktemp("chat-gateway")) as server:
        yield server


@pytest.fixture
def open_chat(browser, cog: FakeCog, chat_gateway: GatewayServer) -> Iterator[OpenPage]:
    cog.pieces, cog.end, cog.full = ("Four", "."), {}, False
    with pages_of(browser, chat_gateway) as open_path:
        yield open_path


def ask(page: Page, prompt: str) -> str:
    """A new conversation; the id of its first prediction."""
    page.get_by_role("button", name="Clear", exact=True).click()
    page.get_by_label("prompt", exact=True).fill(prompt)
    return run(page)


def reply(page: Page, text: str) -> None:
    page.get_by_label("Next message").fill(text)
    page.keyboard.press("Enter")


def expect_turns(page: Page, texts: Sequence[str]) -> None:
    expect(page.locator(".turns .turn-text")).to_have_text(list(texts))


def sent(cog: FakeCog) -> dict[str, object]:
    return cog.requests[-1][1]["input"]


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_next_message_is_sent_with_the_whole_conversation(open_chat, cog: FakeCog):
    page = open_chat()
    expect(page.get_by_label("Next message")).to_be_hidden()
    page.get_by_label("system_prompt").fill("Be brief.")
    page.get_by_label("prompt", exact=True).fill("What is 2 + 2?")
    first = run(page)
    expect_turns(page, ["What is 2 + 2?"])
    assert sent(cog)["prompt"] == "What is 2 + 2?"
    cog.pieces = ("Eight", ".")
    reply(page, "And doubled?")
    expect(page.locator("#pretty")).to_have_text("Eight.")
    wait_for_status(page, "succeeded")
    asked = [say("user", "What is 2 + 2?"), say("assistant", "Four."), say("user", "And doubled?")]
    assert (sent(cog)["messages"], sent(cog)["system_prompt"]) == (asked, "Be brief.")
    assert not sent(cog).get("prompt")
    expect_turns(page, [one["content"] for one in asked])
    assert json.loads(code_of(page, "curl").partition("-d '")[2].rstrip("'"))["input"]["messages"] == asked
    check_page(page)
    page.get_by_role("link", name="Permalink").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("And doubled?")
    expect_turns(page, [one["content"] for one in asked])
    expect(page.locator("#pretty")).to_have_text("Eight.")
    assert page.locator("#view-form").evaluate("panel => panel.scrollHeight <= panel.clientHeight"), "no turn is hidden"
    assert first not in page.url
    check_page(page)
    page.get_by_role("link", name="Tweak").click()
    expect_turns(page, [*(one["content"] for one in asked), "Eight."])
    reply(page, "Thanks")
    wait_for_status(page, "succeeded")
    assert sent(cog)["messages"] == [*asked, say("assistant", "Eight."), say("user", "Thanks")]


def test_a_conversation_can_be_cleared_and_a_typed_prompt_begins_another(open_chat, cog: FakeCog):
    page = open_chat()
    ask(page, "one")
    reply(page, "two")
    expect(page.locator("#turns .turn")).to_have_count(3)
    wait_for_status(page, "succeeded")
    page.get_by_label("prompt", exact=True).fill("three")
    run(page)
    assert (sent(cog)["prompt"], sent(cog).get("messages", [])) == ("three", [])
    expect_turns(page, ["three"])
    page.get_by_label("system_prompt").fill("kept")
    page.get_by_role("button", name="Clear conversation").click()
    expect(page.locator("#turns .turn")).to_have_count(0)
    expect(page.locator("#pretty")).to_be_empty()
    expect(page.get_by_label("Next message")).to_be_hidden()
    expect(page.get_by_role("link", name="Permalink")).to_be_hidden()
    expect(page.get_by_label("prompt", exact=True)).to_have_value("")
    expect(page.get_by_label("system_prompt")).to_have_value("kept")


def test_a_message_without_an_answer_can_be_sent_again(open_chat, cog: FakeCog):
    page = open_chat()
    ask(page, "one")
    cog.pieces, cog.end = (), {"status": "failed", "error": "the model fell over"}
    reply(page, "two")
    wait_for_status(page, "failed")
    expect(page.get_by_label("Next message")).to_have_value("two")
    expect(page.locator("#output").get_by_role("alert")).to_have_text("the model fell over")
    cog.pieces, cog.end = ("yes",), {}
    page.get_by_role("button", name="Send").click()
    wait_for_status(page, "succeeded")
    assert sent(cog)["messages"] == [say("user", "one"), say("assistant", "Four."), say("user", "two")]
    expect_turns(page, ["one", "Four.", "two"])


def test_a_turn_that_is_stopped_keeps_what_was_written(open_chat, cog: FakeCog):
    page = open_chat()
    ask(page, "one")
    gate = asyncio.Event()
    cog.gate, open_gate = gate, cog.gate
    reply(page, "two")
    expect(page.locator("#pretty")).to_have_text("Four")
    expect(page.get_by_role("button", name="Send")).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    wait_for_status(page, "canceled")
    cog.gate = open_gate
    reply(page, "three")
    wait_for_status(page, "succeeded")
    assert [one["content"] for one in sent(cog)["messages"]] == ["one", "Four.", "two", "Four", "three"]


def test_answers_are_shown_as_markdown_and_copied_as_written(open_chat, cog: FakeCog):
    page = open_chat(permissions=["clipboard-read", "clipboard-write"])
    cog.pieces = tuple(MARKDOWN[start : start + 9] for start in range(0, len(MARKDOWN), 9))
    prediction = ask(page, "What is a cache?")
    expect(page.locator("#pretty")).to_contain_text("32 kB")

    def check() -> None:
        answer = page.locator("#pretty")
        expect(answer.locator("h3")).to_have_text("Caches")
        expect(answer.locator("p").first).to_have_text("A fast and small store, see the page. 2 < 3.")
        assert answer.locator("strong, em, p code").all_text_contents() == ["fast", "small", "store"]
        expect(answer.get_by_role("link", name="the page")).to_have_attribute("href", "https://example.org/a?b=1&c=2")
        expect(answer.locator("ul > li > ol > li")).to_have_text("nested")
        expect(answer.locator("pre code")).to_have_text('print("<b>")')
        expect(answer.locator("td.right")).to_have_text("32 kB")
        assert page.locator("#text").text_content() == MARKDOWN
        check_page(page)

    check()
    page.goto(page.url + f"p/{prediction}")
    check()


def test_html_and_scripts_in_an_answer_and_in_a_message_stay_text(open_chat, cog: FakeCog):
    page = open_chat()
    cog.pieces = tuple(INJECTION[start : start + 50] for start in range(0, len(INJECTION), 50))
    prediction = ask(page, INJECTION)
    reply(page, INJECTION)
    expect(page.locator("#turns .turn")).to_have_count(3)
    wait_for_status(page, "succeeded")

    def check() -> None:
        shown = page.locator("#pretty")
        expect(shown).to_contain_text('<iframe srcdoc="<script>top.hit=1</script>">')
        assert page.locator("main :is(img, script, iframe, svg, [onerror], [onmouseover], [onload])").count() == 0
        addresses = page.locator("main a").evaluate_all("links => links.map(link => link.href)")
        assert {address.partition(":")[0] for address in addresses} <= {"http", "https"}
        assert page.evaluate("window.hit") is None

    check()
    page.goto(page.url + f"p/{prediction}")
    check()


def test_an_answer_that_is_nested_too_deeply_is_shown_as_it_is(open_chat, cog: FakeCog):
    page = open_chat()
    deep = ">" * 19_000 + "end"
    cog.pieces = (deep,)
    ask(page, "deep")
    expect(page.locator("#pretty")).to_have_text(deep)
