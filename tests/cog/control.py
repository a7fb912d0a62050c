"""Controls a ControlledPredictor from a test: reads its statistics and waits until it is idle.

Control(folder).wait_until_idle(server)  # a server with CONTROL=folder in its environment
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from lab.endurance.cog_process import CogServer

CONTROLLED = "tests/cog/controlled_predict.py:ControlledPredictor"


class Control:
    """Reads and controls a ControlledPredictor through files; see there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stats(self, server: CogServer) -> dict[str, int]:
        server.health()
        return json.loads((self.folder / "stats.json").read_text())

    def wait_until_running(self, server: CogServer, number: int) -> None:
        """Wait until so many requests run at the same time."""
        deadline = time.monotonic() + 60
        while (stats := self.stats(server))["num_running"] < number:
            assert time.monotonic() < deadline, f"the engine runs too few: {stats}"
            time.sleep(0.05)

    def wait_until_idle(self, server: CogServer) -> None:
        """Wait until nothing runs or waits."""
        deadline = time.monotonic() + 60
        while (stats := self.stats(server))["num_running"] + stats["num_waiting"]:
            assert time.monotonic() < deadline, f"the engine still works: {stats}"
            time.sleep(0.05)
        assert stats["num_free_blocks"] == stats["num_blocks"]
