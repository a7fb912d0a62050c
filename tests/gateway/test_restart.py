"""The door's process is killed and stopped while predictions run on a real Cog server."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from lab.endurance.cog_process import CogServer
from tests.gateway.door_server import DoorServer
from tests.gateway.started_cog import SLOW, SLOWEST

pytestmark = pytest.mark.server


def started(cog: CogServer, folder: Path) -> DoorServer:
    return DoorServer([cog.url], folder, DRAIN_SECONDS=60)


def test_a_killed_door_keeps_what_ended_and_says_what_was_interrupted(cog, tmp_path):
    with started(cog, tmp_path) as door:
        ended = door.wait_for(door.create(nlq="short?", cols="a")["id"], "succeeded")
        running = door.create(nlq=SLOWEST, cols="a")["id"]
        partial = saved_output(door, running)
        door.kill()
    with started(cog, tmp_path) as door:
        assert door.get(ended["id"])["output"] == ended["output"]
        interrupted = door.get(running)
        assert interrupted["status"] == "failed"
        assert interrupted["error"].startswith("interrupted")
        assert interrupted["output"][: len(partial)] == partial


def saved_output(door: DoorServer, prediction_id: str) -> list[str]:
    """What has reached the database of a prediction that runs, once there is some."""
    with closing(sqlite3.connect(door.folder / "predictions.sqlite")) as database:
        query = "SELECT output, status FROM predictions WHERE id = ?"
        while (row := database.execute(query, (prediction_id,)).fetchone())[0] == "null":
            time.sleep(0.02)
    assert row[1] == "processing"
    return json.loads(row[0])


def test_a_stopped_door_finishes_what_runs(cog, tmp_path):
    with started(cog, tmp_path) as door:
        running = door.create(nlq=SLOW, cols="a")["id"]
        door.wait_for(running, "processing")
        door.process.send_signal(signal.SIGTERM)
        assert door.process.wait(90) in (0, -signal.SIGTERM)
    with started(cog, tmp_path) as door:
        assert door.get(running)["status"] == "succeeded"


def test_a_wrong_setting_and_a_database_in_use_are_said_plainly(cog, tmp_path):
    with pytest.raises(AssertionError, match="port: Input should be less than or equal to 65535"):
        DoorServer([], tmp_path, PORT=99999).__enter__()
    with started(cog, tmp_path), pytest.raises(AssertionError, match="used by another door"):
        started(cog, tmp_path).__enter__()
