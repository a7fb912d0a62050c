"""How sure the model is of the fields of an answer, in a real Chromium."""

from __future__ import annotations

import json
import math
import re

import pytest
from playwright.sync_api import expect

from tests.gateway.gateway_server import GatewayServer
from tests.gateway.pages.page_actions import answer, check_page, copied, fill, run

pytestmark = pytest.mark.server


def test_doubtful_fields_are_marked_and_named_beside_the_answer_and_on_its_permalink(open_page, gateway: GatewayServer):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    expect(page.locator("#confidence")).to_be_hidden()
    fill(page, "how sure?")
    prediction = gateway.get(run(page))
    found = prediction["metrics"]["confidence"]
    fields = {pointer: share for pointer, share in found["fields"].items() if share < 0.8}
    assert 0 < len(fields) < len(found["fields"]), "some are doubtful"
    assert found["calibrated"] is True and found["lowest"] == min(fields.values())
    share = f"{math.floor(100 * fields['/filters/0/value'])} %"
    for _ in range(2):
        expect(page.locator("#pretty .doubtful")).to_have_count(len(fields))
        value = page.locator("#pretty .doubtful").filter(has_text='"how sure?"')
        expect(value).to_have_attribute("title", f"{share} sure")
        expect(value).to_have_attribute("data-share", share)
        told = page.locator("#confidence")
        expect(told).to_contain_text("Doubtful: ")
        expect(told).to_contain_text(f"{math.floor(100 * found['lowest'])} %")
        expect(told).to_have_attribute("title", re.compile("this share was right. Below 80 %"))
        check_page(page)
        assert json.loads(copied(page, "#copy-output")) == answer(page), "what is copied has no marks"
        page.goto(f"{gateway.url}/p/{prediction['id']}")
