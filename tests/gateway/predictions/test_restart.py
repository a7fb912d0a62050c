"""The gateway's process is killed and stopped while predictions run on a real Cog server."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from lab.endurance.cog_process import CogServer
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.started_cog import SLOW, SLOWEST

pytestmark = pytest.mark.server


def started(cog: CogServer, folder: Path) -> GatewayServer:
    return GatewayServer([cog.url], folder, DRAIN_SECONDS=60)


def test_a_killed_gateway_keeps_what_ended_and_says_what_was_interrupted(cog, tmp_path):
    with started(cog, tmp_path) as gateway:
        ended = gateway.wait_for(gateway.create(nlq="short?", cols="a")["id"], "succeeded")
        running = gateway.create(nlq=SLOWEST, cols="a")["id"]
        partial = saved_output(gateway, running)
        gateway.kill()
    with started(cog, tmp_path) as gateway:
        assert gateway.get(ended["id"])["output"] == ended["output"]
        interrupted = gateway.get(running)
        assert interrupted["status"] == "failed"
        assert interrupted["error"].startswith("interrupted")
        assert interrupted["output"][: len(partial)] == partial


def saved_output(gateway: GatewayServer, prediction_id: str) -> list[str]:
    """What has reached the database of a prediction that runs, once there is some."""
    with closing(sqlite3.connect(gateway.folder / "predictions.sqlite")) as database:
        query = "SELECT output, status FROM predictions WHERE id = ?"
        while (row := database.execute(query, (prediction_id,)).fetchone())[0] == "null":
            time.sleep(0.02)
    assert row[1] == "processing"
    return json.loads(row[0])


def test_a_stopped_gateway_finishes_what_runs(cog, tmp_path):
    with started(cog, tmp_path) as gateway:
        running = gateway.create(nlq=SLOW, cols="a")["id"]
        gateway.wait_for(running, "processing")
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(90) in (0, -signal.SIGTERM)
    with started(cog, tmp_path) as gateway:
        assert gateway.get(running)["status"] == "succeeded"


def test_a_wrong_setting_and_a_database_in_use_are_said_plainly(cog, tmp_path):
    with pytest.raises(AssertionError, match="port: Input should be less than or equal to 65535"):
        GatewayServer([], tmp_path, PORT=99999).__enter__()
    with started(cog, tmp_path), pytest.raises(AssertionError, match="used by another gateway"):
        started(cog, tmp_path).__enter__()
