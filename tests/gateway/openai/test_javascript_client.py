"""OpenAI's official JavaScript client, unmodified, against the door; it needs Node.js and npm's registry."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.server, pytest.mark.index]


def test_the_javascript_client_asks_streams_and_forces_a_tool(chat_door, javascript):
    text = '{"item": "tea", "count": 2}'
    assert javascript.run("openai.mjs", chat_door.url) == {
        "whole": text,
        "streamed": text,
        "call": {"item": "tea", "count": 2},
        "finish_reason": "tool_calls",
        "has_usage": True,
        "refused": ["BadRequestError", "guided_json"],
    }
