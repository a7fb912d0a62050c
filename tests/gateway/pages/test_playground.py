"""The playground in a real Chromium, against the gateway and a real Cog server."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from tasks.honeycomb.columns import parse_columns
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.pages.page_actions import (
    answer,
    check_page,
    code_of,
    copied,
    expect_chips,
    fill,
    paste,
    run,
    wait_for_status,
)
from tests.gateway.started_cog import SLOWER, SLOWEST

pytestmark = pytest.mark.server


def test_the_form_is_that_of_the_schema_with_the_first_example(open_page):
    page = open_page()
    assert page.get_by_label("nlq").input_value() == "EMISSING slowest traces"
    expect(page.locator(".chips li")).to_have_count(14)
    expect(page.locator("#input-cols")).to_have_attribute("aria-required", "true")
    number = page.get_by_label("max_tokens")
    expect(number).to_be_hidden()
    page.get_by_text("More settings").click()
    expect(number).to_have_attribute("max", "2500")
    expect(page.locator("#input-max_tokens-about")).to_contain_text("1 to 2,500. Default 512.")


def test_an_answer_appears_while_it_is_written_and_then_its_figures_and_tokens(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    expect(page.get_by_role("tab", name="Tokens")).to_be_hidden()
    page.evaluate(
        """() => {
            const pretty = document.getElementById("pretty");
            window.lengths = new Set();
            new MutationObserver(() => lengths.add(pretty.textContent.length)).observe(pretty, { childList: true });
        }"""
    )
    fill(page, SLOWER)
    run(page)
    assert page.evaluate("window.lengths.size") > 2, "it grew while it was written"
    assert answer(page)["filters"][0]["value"] == SLOWER
    assert json.loads(page.locator("#text").text_content()) == answer(page)
    expect(page.locator("#live")).to_contain_text("Answered in")
    expect(page.locator("#figures dt")).to_have_text(["Total time", "First token", "Tokens per second"])
    expect(page.locator("#elapsed")).to_be_hidden()
    expect(page.locator("#more-figures")).to_be_hidden()
    page.get_by_text("More figures").click()
    expect(page.locator("#more-figures")).to_contain_text("Model passes")
    expect(page.get_by_role("button", name="Run")).to_be_enabled()
    text = copied(page, "#copy-output")
    assert json.loads(text) == answer(page)
    assert text.count("\n") > 5, "it is indented"
    page.get_by_role("tab", name="Tokens").click()
    tokens = page.locator("#tokens .token")
    assert "".join(tokens.all_text_contents()) == page.locator("#text").text_content()
    expect(page.locator("#token-kinds")).to_have_text(f"{tokens.count()} chosen by the model itself")
    expect(page.locator("#tokens .pass-time").last).to_have_text(re.compile(r"[\d.]+ ms"))


def test_cancel_ends_the_prediction_and_keeps_what_was_written(open_page, gateway: GatewayServer):
    page = open_page()
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    fill(page, SLOWEST)
    # The page itself presses Cancel: where cores are busy, a click from here would come after the whole answer.
    page.locator("#pretty").evaluate("""pretty => new MutationObserver((_, observer) => {
        if (!pretty.textContent.includes("breakdowns")) return;
        observer.disconnect();
        document.querySelector("#cancel").click();
    }).observe(pretty, {childList: true, characterData: true, subtree: true})""")
    page.get_by_role("button", name="Run").click()
    wait_for_status(page, "canceled")
    expect(page.locator("#pretty")).to_contain_text("breakdowns")
    expect(page.locator("#figures dt")).to_have_text(["Total time", "Output tokens", "Input tokens"])
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    expect(page.get_by_role("button", name="Correct", exact=True)).to_be_hidden()
    address = page.get_by_role("link", name="Permalink").get_attribute("href")
    assert gateway.get(address.removeprefix("/p/"))["status"] == "canceled"


def test_an_error_is_shown_beside_the_input_that_it_names(open_page):
    page = open_page()
    fill(page, "x" * 2001)
    page.get_by_role("button", name="Run").click()
    error = page.locator("#input-nlq-error")
    expect(error).to_contain_text("2,001 characters")
    expect(page.get_by_label("nlq")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("nlq")).to_be_focused()
    wait_for_status(page, "failed")
    assert shown_in_place_of_an_answer(page) == '"There is no answer."'
    page.get_by_label("nlq").fill("short")
    expect(error).to_be_hidden()


def shown_in_place_of_an_answer(page: Page) -> str:
    return str(page.locator("#pretty").evaluate("element => getComputedStyle(element, '::before').content"))


def test_an_error_has_a_subject_and_a_long_word_does_not_widen_the_page(open_page):
    page = open_page()
    fill(page, "x" * 2001)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#input-nlq-error")).to_be_visible()
    check_page(page)
    page.get_by_label("nlq").fill("")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#input-nlq-error")).to_have_text("nlq is required")


def test_a_run_is_two_screens_of_a_phone_and_shows_its_answer(open_page):
    page = open_page(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollHeight") < 1300
    run(page)
    expect(page.locator("#pretty")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollHeight") < 1700
    expect(page.locator("#code")).to_be_hidden()
    page.get_by_role("heading", name="This call in code").click()
    assert "curl" in code_of(page, "curl")


def test_an_error_of_several_inputs_keeps_their_names(open_page):
    page = open_page()
    text = "Prediction failed: InputError: nlq or cols: both are empty; give one of the two"
    errors = page.evaluate(
        """async (text) => {
            const { InputForm } = await import("/static/form.js");
            return new InputForm(document.getElementById("form"), () => {}).errorsIn(text);
        }""",
        text,
    )
    assert errors == [{"name": "nlq", "message": "nlq or cols: both are empty; give one of the two"}]


def test_prose_is_not_shown_as_code(open_page):
    page = open_page()
    families = page.evaluate(
        """async () => {
            const { showJson } = await import("/static/json_view.js");
            const pretty = document.getElementById("pretty");
            const shown = (text) => (showJson(pretty, text), getComputedStyle(pretty).fontFamily);
            return [shown("Paris is the capital."), shown('{"a": 1}')];
        }"""
    )
    assert ["mono" in family for family in families] == [False, True]


def test_clear_empties_what_has_no_default(open_page):
    page = open_page()
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_label("nlq")).to_have_value("")
    expect(page.locator("#input-max_tokens")).to_have_value("512")


def test_the_input_can_be_typed_as_json_and_is_then_in_the_form(open_page):
    page = open_page()
    fill(page, "how many?")
    page.locator("#tab-json").click()
    area = page.get_by_label("Input as JSON")
    expect(page.get_by_label("nlq")).to_be_hidden()
    assert json.loads(area.input_value()) == {"nlq": "how many?", "cols": '["a", "b"]'}
    area.fill('{"nlq": "typed", "cols": "x, y", "max_tokens": 9999')
    expect(page.locator("#input-json-error")).to_contain_text("is not JSON")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#status")).to_have_attribute("data-status", "idle")
    area.fill('{"nlq": "typed", "colls": []}')
    expect(page.locator("#input-json-error")).to_have_text("colls: the model has no such input")
    area.fill('{"nlq": "typed", "cols": "x, y", "max_tokens": 9999}')
    assert '"nlq":"typed"' in code_of(page, "curl")
    check_page(page)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#input-max_tokens-error")).to_be_visible()
    expect_chips(page, ["x", "y"])
    page.get_by_label("max_tokens").fill("300")
    run(page)
    assert answer(page)["breakdowns"] == ["x"]
    page.locator("#tab-json").click()
    assert json.loads(area.input_value())["max_tokens"] == 300


def test_what_the_schema_refuses_is_not_sent(open_page, gateway: GatewayServer):
    before = gateway.create(nlq="before", cols="a")["id"]
    page = open_page()
    page.get_by_role("button", name="Clear").click()
    page.get_by_text("More settings").click()
    page.get_by_label("max_tokens").fill("9999")
    page.get_by_text("More settings").click()
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#input-nlq-error")).to_have_text("nlq is required")
    expect(page.locator("#input-cols-error")).to_have_text("cols needs at least one name")
    expect(page.locator("#input-max_tokens-error")).to_have_text("9999 is too large; the most is 2500")
    assert gateway.newest()["id"] == before


def test_columns_are_chips_that_can_be_added_and_removed(open_page):
    page = open_page()
    fill(page, "how many?", '["a", "b", "c"]')
    expect_chips(page, ["a", "b", "c"])
    page.get_by_role("button", name="Remove b").click()
    page.locator("#input-cols").click()
    page.keyboard.type("duration_ms,error")
    expect_chips(page, ["a", "c", "duration_ms"])
    page.keyboard.press("Enter")
    page.keyboard.type("a")  # is there already
    page.keyboard.press("Enter")
    expect_chips(page, ["a", "c", "duration_ms", "error"])
    page.keyboard.press("Backspace")
    expect_chips(page, ["a", "c", "duration_ms"])
    page.keyboard.type("name")
    run(page)  # what is typed counts, and the click on Run is not lost
    expect_chips(page, ["a", "c", "duration_ms", "name"])
    assert answer(page)["breakdowns"] == ["a"]


def test_pasted_lists_are_read_as_the_task_reads_them_and_half_a_list_is_an_error(open_page):
    page = open_page()
    lists = ("['http.route', 'it\\'s', \"x's\"]", '["a \\"quoted\\" name", "b,c"]', "a, b ,c,", "[u'a', 'b\\\\c',]")
    for text in lists:
        fill(page, "how many?", text)
        expect_chips(page, parse_columns(text))
    fill(page, "how many?", "a\nb\n c \n")
    expect_chips(page, ["a", "b", "c"])
    paste(page, "['d', 'e")
    expect_chips(page, ["a", "b", "c"])
    expect(page.locator("#input-cols")).to_have_value("['d', 'e")
    expect(page.locator("#input-cols-error")).to_contain_text("not a complete list")


def test_the_keyboard_is_enough(open_page):
    page = open_page()
    fill(page, "how many?")
    page.get_by_label("nlq").focus()
    page.keyboard.press("Control+Enter")
    wait_for_status(page, "succeeded")
    page.get_by_role("tab", name="Answer").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Text")).to_be_focused()
    expect(page.locator("#view-text")).to_be_visible()
    expect(page.locator("#view-pretty")).to_be_hidden()


def test_accepted_drafts_of_each_kind_have_a_colour_and_a_count_of_their_own(open_page):
    page = open_page()
    sources = ["chosen", "forced", "model", "table", "context", "context_without_space", "recent"]
    trace = [[30.0, [[f"{source} ", source] for source in sources]], [45.5, [["end", "chosen"]]]]
    page.evaluate("async (trace) => (await import('/static/tokens.js')).showTokens(trace)", trace)
    page.get_by_role("tab", name="Tokens").click()
    assert page.locator("#token-kinds li").all_text_contents() == [
        "2 chosen by the model itself",
        "1 forced by the grammar",
        "1 accepted from the draft model",
        "1 accepted from the table of usual answers",
        "2 accepted copies of the prompt or of this answer",
        "1 accepted copies of earlier answers",
    ]
    colours = page.locator("#tokens .token").evaluate_all(
        "tokens => tokens.map(t => getComputedStyle(t).backgroundColor)"
    )
    assert len(set(colours)) == 6
    assert page.locator("#tokens .pass-time").all_text_contents() == ["30 ms", "16 ms"]


QUESTION = 'it\'s "quoted", $HOME `id` \\ é 😀\nnext line'
INPUTS = {"nlq": QUESTION, "cols": '["a", "b"]'}


def printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_code_in_every_language_makes_the_form_s_call(open_page, gateway: GatewayServer):
    page = open_page()
    fill(page, QUESTION)
    prediction = json.loads(printed("bash", "-c", code_of(page, "curl")))
    assert (prediction["status"], prediction["input"]) == ("succeeded", INPUTS)

    for language in ("Python", "Python (openai)"):
        output = printed(sys.executable, "-c", code_of(page, language))
        newest = gateway.newest()
        assert newest["id"] != prediction["id"], language
        assert (newest["input"], "".join(newest["output"])) == (INPUTS, output), language
        prediction = newest

    code = code_of(page, "Cog").replace("\ncog predict", "\nprintf '%s\\0'")
    assert code.startswith("# In the package's folder. Cog needs Docker;")
    words = printed("bash", "-c", code).split("\0")[:-1]
    assert words == ["-i", f"nlq={QUESTION}", "-i", f"cols={INPUTS['cols']}"], "each input is one word"


def test_the_code_for_javascript_s_clients_makes_the_form_s_call(open_page, gateway: GatewayServer, javascript):
    page = open_page()
    fill(page, QUESTION)
    for language in ("JavaScript", "JS (openai)"):
        before = gateway.newest()["id"]
        output = javascript.run_code(code_of(page, language))
        newest = gateway.newest()
        assert newest["id"] != before, language
        assert (newest["input"], "".join(newest["output"])) == (INPUTS, output), language
