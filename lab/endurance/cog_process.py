"""Runs Cog's HTTP server as a child process that can be asked, signalled and killed.

with CogServer("predict.py:Predictor", env={"ENGINE": "fake"}, log=path) as server: server.health()
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from pipeline.paths import ROOT

STOP_SECONDS = 30.0  # for predictions in flight, before the server is killed


class ServerFailedError(Exception):
    """A server did not start, or did not do what every server does; the message has the end of its log."""


class CogServer:
    """A server as a context manager: ready on entry, stopped on exit.

    Args:
        reference: the value of `predict` in cog.yaml, relative to the package.
        env: environment variables of the server.
        concurrency: how many predictions run at the same time; one more is refused.
        log: file for its output.
        setup_seconds: time limit for becoming ready.
        package: the folder in which it runs.
        python: whose packages it uses.
        wrapper: command before the server's own, such as one that limits its memory.
    """

    def __init__(
        self,
        reference: str,
        *,
        env: Mapping[str, str],
        log: Path,
        concurrency: int = 32,
        setup_seconds: float = 120,
        package: Path = ROOT,
        python: Path | None = None,
        wrapper: tuple[str, ...] = (),
    ) -> None:
        self.log = log
        self.package = package
        self._setup_seconds = setup_seconds
        python = python or Path(sys.executable)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = {
            **os.environ,
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "PORT": str(self.port),
            "COG_PREDICT_TYPE_STUB": reference,
            "COG_MAX_CONCURRENCY": str(concurrency),
            "PYTHONPATH": str(package),
            **env,
        }
        self._command = [*wrapper, str(python), "-m", "cog.server.http", "--host", "127.0.0.1"]
        self.client = httpx.Client(base_url=self.url, timeout=300)

    def start(self) -> subprocess.Popen[bytes]:
        """Start it without waiting until it is ready."""
        with self.log.open("w") as log:
            return subprocess.Popen(
                self._command, cwd=self.package, env=self._env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def __enter__(self) -> Self:
        self.process = self.start()
        try:
            self.wait_for("READY", self._setup_seconds)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def health(self) -> dict[str, Any]:
        """The server's health check."""
        return dict(self.client.get("/health-check").json())

    def wait_for(self, status: str, seconds: float = 120) -> dict[str, Any]:
        """Wait until the health check has this status, and return it.

        Raises:
            ServerFailedError: it had not in time; the message has the end of the log.
        """
        deadline = time.monotonic() + seconds
        seen: dict[str, Any] = {}
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                seen = self.health()
            except httpx.TransportError:
                pass
            else:
                if seen["status"] == status:
                    return seen
                if seen["status"] == "SETUP_FAILED":
                    break
            time.sleep(0.1)
        raise ServerFailedError(f"the server is not {status} but {seen}:\n{self.log.read_text()[-4000:]}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
