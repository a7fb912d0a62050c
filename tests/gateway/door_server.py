"""The door as a process of its own, in front of Cog servers that already run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

ROOT = Path(__file__).resolve().parents[2]
MODEL = "local/test"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class DoorServer:
    """A door as a context manager: it has a healthy server on entry and is stopped on exit.

    Args:
        upstreams: addresses of Cog servers.
        folder: of its database and log.
        settings: environment variables without DOOR_.
        wait_until: the path that must answer 200 before the door is used.
        keys: API keys by name; `client` sends the first.
    """

    def __init__(
        self,
        upstreams: Sequence[str],
        folder: Path,
        wait_until: str = "/ready",
        keys: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.folder = folder
        self.log = folder / "door.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.keys = keys or {}
        headers = [("Authorization", f"Bearer {key}") for key in self.keys.values()][:1]
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=headers)
        self._wait_until = wait_until
        own = {
            "PORT": self.port,
            "UPSTREAMS": ",".join(upstreams),
            "DATABASE": folder / "predictions.sqlite",
            "MODEL": MODEL,
            "DRAIN_SECONDS": 5,
            **settings,
        }
        self._env = {**os.environ, **{f"DOOR_{name}": str(value) for name, value in own.items()}}

    def __enter__(self) -> Self:
        with self.log.open("a") as log:
            command = [sys.executable, "-m", "gateway"]
            self.process = subprocess.Popen(command, cwd=ROOT, env=self._env, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.client.get(self._wait_until).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        self.__exit__()
        raise AssertionError(f"the door did not start:\n{self.log.read_text()[-4000:]}")

    def __exit__(self, *exc_info: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def create(self, **inputs: Any) -> dict[str, Any]:
        """A new prediction of Replicate's API, as it is right after its creation."""
        response = self.client.post(f"/v1/models/{MODEL}/predictions", json={"input": inputs})
        assert response.status_code == 201, response.text
        return response.json()

    def get(self, prediction_id: str) -> dict[str, Any]:
        return self.client.get(f"/v1/predictions/{prediction_id}").json()

    def wait_for(self, prediction_id: str, *statuses: str) -> dict[str, Any]:
        """The prediction once it has one of these statuses."""
        deadline = time.monotonic() + 60
        while (prediction := self.get(prediction_id))["status"] not in statuses:
            assert time.monotonic() < deadline, prediction
            time.sleep(0.02)
        return prediction
