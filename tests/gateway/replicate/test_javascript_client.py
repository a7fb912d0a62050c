"""Replicate's official JavaScript client, unmodified, against a door with keys; it needs Node.js and npm's registry."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.door_server import MODEL, DoorServer
from tests.gateway.javascript_clients import JavascriptClients
from tests.gateway.replicate.answers import asked
from tests.gateway.started_cog import SLOWER

pytestmark = [pytest.mark.server, pytest.mark.index]


@pytest.fixture(scope="module")
def found(javascript: JavascriptClients, keyed_door: DoorServer) -> dict[str, Any]:
    """What the client got."""
    return javascript.run("replicate.mjs", keyed_door.url, keyed_door.keys["alice"], MODEL, SLOWER)


def test_run_gives_the_whole_output_however_it_waits(found):
    assert asked(found["run"]) == asked(found["polledRun"]) == "how many?"
    assert asked(found["longerThanItsWait"]) == SLOWER


def test_stream_gives_the_pieces_while_the_model_writes(found):
    """The client sends no key to the address of a stream."""
    assert found["streamed"]["milliseconds"] > 500
    assert len(found["streamed"]["texts"]) > 5
    assert found["streamed"]["last"] == ["done", {}]
    assert asked(found["streamed"]["texts"]) == SLOWER


def test_a_prediction_is_created_polled_cancelled_and_listed(found):
    assert found["cancelled"] == ["starting", "processing", "canceled", "canceled"]
    status, output = found["polled"]
    assert (status, asked(output)) == ("succeeded", "how many?")
    assert set(found["listed"]) == {MODEL}


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
