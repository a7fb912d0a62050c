"""The gateway as a process of its own, in front of Cog servers that already run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from tests.free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
MODEL = "local/test"
PREDICTIONS = f"/v1/models/{MODEL}/predictions"


class GatewayServer:
    """A gateway as a context manager: ready on entry, stopped on exit.

    Args:
        upstreams: the addresses of Cog servers.
        folder: where its database and log are.
        settings: environment variables without GATEWAY_.
        wait_until: the path that must answer 200 before the gateway is used.
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
        self.log = folder / "gateway.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.keys = keys or {}
        headers = [("Authorization", f"Bearer {key}") for key in self.keys.values()][:1]
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=headers)
        self._wait_until = wait_until
        own = {"PORT": self.port, "UPSTREAMS": ",".join(upstreams), "MODEL": MODEL, "DRAIN_SECONDS": 5}
        own |= {"DATABASE": folder / "predictions.sqlite", **settings}
        self._env = {**os.environ, **{f"GATEWAY_{name}": str(value) for name, value in own.items()}}

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
        raise AssertionError(f"the gateway did not start:\n{self.log.read_text()[-4000:]}")

    def __exit__(self, *exc_info: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End the process as a crash would."""
        self.process.kill()
        self.process.wait()

    def post(self, headers: Mapping[str, str] | None = None, /, **fields: Any) -> httpx.Response:
        """The answer to a request for a prediction of Replicate's API."""
        return self.client.post(PREDICTIONS, json=fields, headers=headers)

    def create(self, headers: Mapping[str, str] | None = None, /, **inputs: Any) -> dict[str, Any]:
        """A new prediction, as it is right after its creation."""
        response = self.post(headers, input=inputs)
        assert response.status_code == 201, response.text
        return response.json()

    @contextmanager
    def sent(self, path: str, body: Any, *headers: str) -> Iterator[None]:
        """A POST whose client leaves at the end of the context, whatever it has got by then."""
        content = json.dumps(body)
        head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}", *headers]
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall("\r\n".join([*head, "", content]).encode())
            yield

    def newest(self) -> dict[str, Any]:
        """The last prediction that was created."""
        return self.client.get("/v1/predictions").json()["results"][0]

    def get(self, prediction_id: str) -> dict[str, Any]:
        return self.client.get(f"/v1/predictions/{prediction_id}").json()

    def wait_for(self, prediction_id: str, *statuses: str) -> dict[str, Any]:
        """The prediction once it has one of these statuses."""
        deadline = time.monotonic() + 60
        while (prediction := self.get(prediction_id))["status"] not in statuses:
            assert time.monotonic() < deadline, prediction
            time.sleep(0.02)
        return prediction
