"""Runs the gateway, which is in front of Cog's server, as a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from serving.config import Settings
from serving.errors import ServingError
from serving.weights import WeightsLock

_ADDRESSES = """
  Playground  {url}/
  API   {url}/v1  as Replicate's: REPLICATE_BASE_URL={url}, model {model}
"""


class GatewayProcess:
    """The gateway, which is started again if a signal ends it: the server and its predictions go on meanwhile.

    Args:
        host, port: where it listens.
        cog_port: where it has Cog's protocol as well.
        cog_url: address of the server.
        concurrency: see `GatewaySettings`.
    """

    def __init__(self, host: str, port: int, *, cog_port: int, cog_url: str, concurrency: int) -> None:
        self._url = local_url(host, port)
        self.cog_url = local_url(host, cog_port)
        self._model, digest = served_model()
        self._command = [sys.executable, "-m", "gateway", "--host", host, "--port", str(port)]
        self._command += ["--cog-port", str(cog_port)]
        self._command += ["--upstream", cog_url, "--model", self._model]
        self._command += ["--weights-digest", digest] if digest else []
        self._env = {"GATEWAY_CONCURRENCY": str(concurrency), **os.environ}
        self._is_ending = False
        self._lock = threading.Lock()  # of the process and whether it is to end
        self.failed = False  # has ended by itself, so it would end again

    def start(self, on_exit: Callable[[], None]) -> None:
        """Start it; `on_exit` is called from another thread when it has ended for good, for whatever reason."""
        self._launch()

        def watch() -> None:
            while self._was_killed():
                sys.stderr.write("The gateway was ended by a signal; it starts again.\n")
                self._launch()
            on_exit()

        threading.Thread(target=watch, daemon=True).start()

    def _launch(self) -> None:
        with self._lock:
            if not self._is_ending:
                # A process session of its own: Ctrl-C reaches only the parent, which ends it in order.
                self._process = subprocess.Popen(self._command, env=self._env, start_new_session=True)

    def _was_killed(self) -> bool:
        """Wait for its end; whether a signal ended it that is not from here."""
        code = self._process.wait()
        with self._lock:
            if self._is_ending:
                return False
        if code < 0:
            return True
        sys.stderr.write("The gateway ended; the reason is above.\n")
        self.failed = True
        return False

    def terminate(self) -> None:
        """Let it finish running predictions and end."""
        self._end(lambda: self._process.terminate())

    def kill(self) -> None:
        """End it now."""
        self._end(lambda: self._process.kill())

    def _end(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._is_ending = True
            end()

    def is_ready(self) -> bool:
        """Whether it answers and has found the server."""
        return read_json(f"{self._url}/ready").get("status") == "ready"

    @property
    def addresses(self) -> str:
        """Text for the user: what is where."""
        return _ADDRESSES.format(url=self._url, model=self._model)


def local_url(host: str, port: int) -> str:
    """The address of a server that listens at `host`, from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def read_json(url: str) -> dict[str, Any]:
    """The object that an address answers with; empty if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return dict(json.load(response))
    except (OSError, ValueError):
        return {}


def served_model() -> tuple[str, str]:
    """The model's name for clients, and the digest of its weights; Cog's server says what is wrong with the lock."""
    try:
        settings = Settings()
        entry = WeightsLock.load(settings.weights_lock).entry_for(settings.weights_dir.name)
    except (ServingError, ValueError):
        return "local/model", ""
    return f"local/{entry.name}", entry.set_digest
