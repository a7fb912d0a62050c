"""The beta of Replicate's Python client 2, with only address and token set, against the gateway and a real Cog server.

It has an environment of its own, so a subprocess runs it: `beta_client.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.environment.enter import installed_environment
from tests.gateway.gateway_server import MODEL, GatewayServer
from tests.gateway.replicate.answers import asked
from tests.gateway.started_cog import SLOWER

pytestmark = [pytest.mark.server, pytest.mark.index]
SCRIPT = Path(__file__).with_name("beta_client.py")


@pytest.fixture(scope="module")
def found(keyed_gateway: GatewayServer) -> dict[str, Any]:
    """What the client got."""
    python = installed_environment("replicate2") / "bin" / "python"
    own = {"REPLICATE_BASE_URL": f"{keyed_gateway.url}/v1", "REPLICATE_API_TOKEN": keyed_gateway.keys["alice"]}
    env = {**os.environ, **own, "REPLICATE_POLL_INTERVAL": "0.1"}
    done = subprocess.run([python, SCRIPT, MODEL, SLOWER], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_runs_streams_and_cancels(found):
    assert len(found["run"]) > 5
    assert asked(found["run"]) == "how many?"
    assert asked(found["run_longer_than_its_wait"]) == SLOWER
    pieces, status = found["streamed"]
    assert asked(pieces, "streamed") == SLOWER
    assert status in ("starting", "processing"), "when the first piece was there"
    assert [asked(output) for output in found["asynchronous"]] == ["how many?"] * 2
    assert found["cancelled"] == ["starting", "processing", "canceled", "canceled"]


def test_errors_have_the_client_s_types_and_say_why(found):
    for name, kind, text in (
        ("wrong_input", "UnprocessableEntityError", "input.nlq: 5 is not of type"),
        ("model_error", "ModelError", "nlq: is blank"),
        ("wrong_key", "AuthenticationError", "API key is unknown"),
        ("wrong_model", "NotFoundError", "local/other is not served here"),
    ):
        assert found[name][0] == kind
        assert text in found[name][1]
