"""Replicate's official JavaScript client, unmodified, against a gateway with keys; it needs Node.js and npm."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.gateway_server import MODEL, GatewayServer
from tests.gateway.javascript_clients import FOLDER, JavascriptClients
from tests.gateway.replicate.answers import asked
from tests.gateway.started_cog import SLOWER

pytestmark = [pytest.mark.server, pytest.mark.index]


@pytest.fixture(scope="module")
def found(javascript: JavascriptClients, keyed_gateway: GatewayServer) -> dict[str, Any]:
    """What the client got."""
    return javascript.run(FOLDER / "replicate.mjs", keyed_gateway.url, keyed_gateway.keys["alice"], MODEL, SLOWER)


def test_it_runs_streams_and_cancels(found):
    """It sends no key to the address of a stream."""
    assert asked(found["run"]) == asked(found["polledRun"]) == "how many?"
    assert asked(found["longerThanItsWait"]) == SLOWER
    assert found["streamed"]["status"] in ("starting", "processing"), "when the first piece was there"
    assert found["streamed"]["last"] == ["done", {}]
    assert asked(found["streamed"]["texts"], "streamed") == SLOWER
    assert found["cancelled"] == ["starting", "processing", "canceled", "canceled"]


def test_errors_say_why(found):
    for name, kind, text in (
        ("modelError", "Error", "Prediction failed: "),
        ("modelError", "Error", "nlq: is blank"),
        ("streamedError", "Error", "nlq: is blank"),
        ("wrongInput", "ApiError", "input.nlq: 5 is not of type"),
        ("wrongKey", "ApiError", "401 Unauthorized"),
    ):
        assert found[name][0] == kind
        assert text in found[name][1]
