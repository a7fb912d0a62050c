"""scripts/serve --ray as an operator runs it, with weights that suffice for the fake engine."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx
import psutil
import pytest

from tests.free_ports import free_port

ROOT = Path(__file__).resolve().parents[3]
MODEL, GATEWAY = "ray::ServeReplica:model:model", "ray::ServeReplica:gateway:gateway"


class RayService:
    """The command, on a Ray of its own.

    Args:
        folder: for Ray's files; its name must be short.
        database: of the gateway.
        settings: environment variables.
        options: of the command.
    """

    def __init__(self, folder: Path, database: Path, settings: Mapping[str, str], *options: str) -> None:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_TMPDIR": str(folder)}
        patience = {"RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "100"}  # a proxy on busy cores is not dead
        self._env = {**os.environ, "ENGINE": "fake", "GATEWAY_DATABASE": str(database), **token, **patience}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._said, self._changed, self._has_ended = "", threading.Condition(), False
        self.process = self.start(settings, "--ray", *options)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(self, settings: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(ROOT / "scripts" / "serve"), "--gateway-port", str(self.port), *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env={**self._env, **settings}, text=True, **pipes)

    def wait_until_ready(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or "READY on" in self._said, timeout=600)
        if "READY on" not in self._said:
            fail(self._said)

    @property
    def cluster(self) -> str:
        """Ray's address, which the command says."""
        return re.search(r"--address (\S+)", self._said)[1]

    def replicas(self, of: str = MODEL) -> list[psutil.Process]:
        """The processes of the replicas that run now."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "".join(process.cmdline()[:1]).startswith(of):  # while it works, a method's name follows
                    found.append(process)
        return found

    def close(self) -> str:
        """End it, and return all that it said."""
        below = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.terminate()
        try:
            self.process.wait(120)
        finally:
            for process in below:  # some of Ray's own processes notice the end late
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._listener.join()
        return self._said

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._changed:
                    self._said += line
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


class Load:
    """Predictions that are always so many at once, until it is stopped.

    Args:
        url: of the gateway.
        at_once: how many are in flight.
    """

    def __init__(self, url: str, at_once: int) -> None:
        self._url, self._at_once = f"{url}/v1/models/local/tiny/predictions", at_once
        self.ended: list[dict[str, Any]] = []
        self.is_stopped = False

    async def run(self) -> None:
        # Each request has a connection of its own: an idle one may be closed by the proxy while it is taken again.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        try:
            async with httpx.AsyncClient(timeout=300, limits=limits) as client:
                await asyncio.gather(*(self._send(client, number) for number in range(self._at_once)))
        finally:
            self.is_stopped = True

    async def wait_for(self, number: int) -> None:
        """Until so many more have ended."""
        wanted = len(self.ended) + number
        while len(self.ended) < wanted:
            assert not self.is_stopped, "a request had no answer; its error is that of run()"
            await asyncio.sleep(0.05)

    async def _send(self, client: httpx.AsyncClient, number: int) -> None:
        while not self.is_stopped:
            inputs = {"nlq": f"count {number}", "cols": f"a{number % 8}, b, c"}
            answer = await client.post(self._url, json={"input": inputs}, headers={"Prefer": "wait=60"})
            prediction = answer.json()
            while prediction.get("status") in ("starting", "processing"):
                await asyncio.sleep(0.5)
                prediction = (await client.get(prediction["urls"]["get"])).json()
            self.ended.append(prediction)


def fail(output: str) -> NoReturn:
    """Fail with what a command said; skip if Ray did not start on a machine that has far more to do than it can."""
    is_ray = any(text in output for text in ("Ray does not start", "Failed to connect to Ray"))
    if is_ray and os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip(f"the machine is too busy for Ray, which gives its processes 15 s: {output[-300:]}")
    pytest.fail(output[-5000:])
