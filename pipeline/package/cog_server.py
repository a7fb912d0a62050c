"""Runs Cog's HTTP server and the gateway in front of it as child processes, says when they are ready, and ends them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from gateway.settings import local_url, rename_old_variables
from pipeline.package.errors import PortError
from pipeline.package.example_inputs import curl_command, example_inputs
from pipeline.package.free_ports import Listener, check_ports
from pipeline.paths import ROOT
from pipeline.weights.default_weights import ensure_weights
from serving.config import Settings
from serving.errors import ServingError
from serving.weights import WeightsLock

DRAIN_SECONDS = 60.0  # for predictions in flight; Cog itself has no limit
SPARE_SHARE = 0.25  # of the concurrency: predictions that Cog takes beyond it with the gateway
# Cog's new names are run.py and Runner; this package keeps the old ones and pins the version that has both.
_KNOWN_WARNINGS = (
    "ignore:Predictor.predict() is deprecated:DeprecationWarning,ignore:BasePredictor is deprecated:DeprecationWarning"
)
_READY = """
READY on {url}  (Ctrl-C ends it)
{gateway}
{example}
  With -N -H 'Accept: text/event-stream' the answer is streamed. Health: {url}/health-check

"""
_ADDRESSES = """
  Playground  {url}/
  API   {url}/v1  as Replicate's: REPLICATE_BASE_URL={url}, model {model}
                  as OpenAI's: OPENAI_BASE_URL={url}/v1, model {model}
"""


def serve(host: str, port: int, concurrency: int, *, gateway_port: int | None) -> int:
    """Run the server with the default weights until it exits or a signal stops it.

    Args:
        host, port: the address where the server listens; with the gateway, where the gateway has Cog's protocol.
        concurrency: how many predictions run at the same time; with the gateway, of one caller and adapter.
        gateway_port: the port where the gateway listens, at the same host; None for no gateway.

    Returns:
        The exit code; 1 if a port is taken.
    """
    rename_old_variables()
    listeners = [Listener("Cog", host, port, "--port")]
    if gateway_port is not None:
        listeners.append(Listener("the gateway", host, gateway_port, "--gateway-port"))
    # If another server had the port, it would answer the health check in place of ours.
    try:
        check_ports(listeners)
    except PortError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    ensure_weights()
    os.chdir(ROOT)  # Cog looks for predict.py, .cog/ and weights/ there
    if gateway_port is not None:
        place = hidden_address()
        gateway = GatewayProcess(host, gateway_port, cog_port=port, cog_url=local_url(*place), concurrency=concurrency)
        concurrency += int(SPARE_SHARE * concurrency)  # for callers and adapters that have none there
        has_keys = os.environ.get("GATEWAY_KEYS") == "required"
        return Server(*place, concurrency, None if has_keys else example_inputs(), gateway).run()
    return Server(host, port, concurrency, example_inputs()).run()


def hidden_address() -> tuple[str, int]:
    """A free loopback address and port that no web page and no webhook can guess.

    Cog's server has no keys, answers to any name, and ends when anybody posts to /shutdown. Where a system has only one
    loopback address, only the port is random.
    """
    host = "127.0.0.1"
    if sys.platform == "linux":
        host = ".".join(map(str, (127, 1 + secrets.randbelow(254), secrets.randbelow(256), 1 + secrets.randbelow(254))))
    with socket.socket() as free:
        free.bind((host, 0))
        return host, int(free.getsockname()[1])


class Server:
    """Cog's server, from its start to its end.

    Args:
        host, port: the address where it listens.
        concurrency: how many predictions run at the same time.
        example: inputs of the example request that is printed once the server is ready; None prints no example.
        gateway: the gateway in front of the server, which runs as long as the server does; None for none.
    """

    def __init__(
        self,
        host: str,
        port: int,
        concurrency: int,
        example: Mapping[str, Any] | None = None,
        gateway: GatewayProcess | None = None,
    ) -> None:
        self._url = local_url(host, port)
        self._public_url = self._url if gateway is None else gateway.cog_url
        self._gateway = gateway
        self._example = "" if example is None else curl_command(self._public_url, example) + "\n"
        self._command = [sys.executable, "-m", "cog.server.http", "--host", host]
        self._env = {
            "LOG_FORMAT": "console",
            "COG_LOG_LEVEL": "warning",
            "PYTHONWARNINGS": _KNOWN_WARNINGS,
            **({} if gateway is None else {"TOKEN_TRACE": "1", "CONFIDENCE": "1"}),  # the playground shows them
            **os.environ,
            "PORT": str(port),
            "COG_PREDICT_TYPE_STUB": "predict.py:Predictor",
            "COG_MAX_CONCURRENCY": str(concurrency),
        }
        self._is_ending = False

    def run(self) -> int:
        """Run until the server exits or a signal stops it; returns the exit code."""
        # The server gets its own process session: Ctrl-C reaches only this process, which lets predictions finish.
        self._process = subprocess.Popen(self._command, env=self._env, start_new_session=True)
        if self._gateway is not None:
            self._gateway.start(on_exit=self._process.terminate)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end)
        threading.Thread(target=self._announce, daemon=True).start()
        code = self._process.wait()
        if self._gateway is not None:
            self._gateway.kill()
            if self._gateway.failed:
                return 1
        return 0 if self._is_ending and code in (0, -signal.SIGTERM) else code or 1

    def _end(self, *_: object) -> None:
        """Finish running predictions at the first signal; kill at the second, or when finishing takes too long."""
        if self._is_ending:
            self._kill()
            return
        self._is_ending = True
        sys.stderr.write("finishing running predictions; press Ctrl-C again to stop now\n")
        # The gateway ends first and then its end terminates the server: its waiting predictions still need the server.
        (self._process if self._gateway is None else self._gateway).terminate()
        timer = threading.Timer(DRAIN_SECONDS, self._kill)
        timer.daemon = True
        timer.start()

    def _kill(self) -> None:
        """Kill the server and its worker, which are in the same process session."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def _announce(self) -> None:
        while self._process.poll() is None:
            health = read_json(f"{self._url}/health-check")
            if health.get("status") == "READY" and (self._gateway is None or self._gateway.is_ready()):
                gateway = "" if self._gateway is None else self._gateway.addresses
                sys.stderr.write(_READY.format(url=self._public_url, gateway=gateway, example=self._example))
                return
            if health.get("status") == "SETUP_FAILED":
                sys.stderr.write(f"{health['setup']['logs']}\nThe model did not load; the reason is above.\n")
                self._process.terminate()
                return
            time.sleep(0.2)


class GatewayProcess:
    """The gateway's process, started again if a signal ends it: the server and its predictions go on meanwhile.

    Args:
        host, port: the address where it listens.
        cog_port: another port where it listens, for those who know it as Cog's.
        cog_url: the address of Cog's server.
        concurrency: the number of predictions there, as in `GatewaySettings`.
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
        """Start the process; `on_exit` is called from another thread when it has ended for good."""
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
        """Wait for the end of the process; returns whether a signal ended it that is not from here."""
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
        """Let the gateway finish running predictions and end."""
        self._end(lambda: self._process.terminate())

    def kill(self) -> None:
        """End the process now."""
        self._end(lambda: self._process.kill())

    def _end(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._is_ending = True
            end()

    def is_ready(self) -> bool:
        """Whether the gateway answers and has found the server."""
        return read_json(f"{self._url}/ready").get("status") == "ready"

    @property
    def addresses(self) -> str:
        """A text for people that says what is at which address."""
        return _ADDRESSES.format(url=self._url, model=self._model)


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
