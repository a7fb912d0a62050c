"""Runs Cog's HTTP server and the gateway in front of it as child processes, says when they are ready, and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.settings import local_url
from pipeline.package.errors import PortError
from pipeline.package.example_inputs import curl_command, example_inputs
from pipeline.package.free_ports import Listener, check_ports
from pipeline.package.reload import listening
from pipeline.package.version import first_name
from pipeline.paths import ROOT
from pipeline.weights.atomic import write_json
from pipeline.weights.default_weights import ensure_weights
from pipeline.weights.errors import CheckpointError
from serving.config import Settings
from serving.errors import ServingError
from serving.weights import WeightsLock

DRAIN_SECONDS = 60.0  # for predictions in flight; Cog itself has no limit
_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 1.0  # for a request in Cog's own protocol that has found its server, and not asked it yet
SPARE_SHARE = 0.25  # of the concurrency: predictions that Cog takes beyond it with the gateway
# Cog's new names are run.py and Runner; this package keeps the old ones and pins the version that has both.
_KNOWN_WARNINGS = (
    "ignore:Predictor.predict() is deprecated:DeprecationWarning,ignore:BasePredictor is deprecated:DeprecationWarning"
)
# As COG_LOG_LEVEL=warning, without the same warning in the log of Cog's Rust part, which is not among Python's.
_LOG = (
    "coglet=warn,coglet::predictor=error,coglet::setup=info,coglet::user=info,"
    "coglet_worker=warn,coglet_worker::schema=off,coglet_worker::protocol=off"
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
    if gateway_port is None:
        return Server(host, port, concurrency, example_inputs()).run()
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        place = hidden_address()
        gateway = GatewayProcess(host, gateway_port, cog_port=port, folder=Path(folder), concurrency=concurrency)
        gateway.ask(local_url(*place), served_model()[1])
        concurrency += int(SPARE_SHARE * concurrency)  # for callers and adapters that have none there
        has_keys = os.environ.get("GATEWAY_KEYS") == "required"
        return Server(*place, concurrency, None if has_keys else example_inputs(), gateway).run()


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
        self._host = host
        self._env = {
            "LOG_FORMAT": "console",
            **({} if "COG_LOG_LEVEL" in os.environ else {"RUST_LOG": _LOG}),
            "PYTHONWARNINGS": _KNOWN_WARNINGS,
            **({} if gateway is None else {"TOKEN_TRACE": "1", "CONFIDENCE": "1"}),  # the playground shows them
            **os.environ,
            "COG_PREDICT_TYPE_STUB": "predict.py:Predictor",
            "COG_MAX_CONCURRENCY": str(concurrency),
        }
        self._is_ending = False
        self._other: subprocess.Popen[bytes] | None = None  # one that loads, or finishes its predictions

    def run(self) -> int:
        """Run until the server exits or a signal stops it; returns the exit code."""
        self._process = self._launch(self._host, urlsplit(self._url).port or 0)
        if self._gateway is not None:
            self._gateway.start(on_exit=lambda: self._process.terminate())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end)
        threading.Thread(target=self._announce, daemon=True).start()
        with nullcontext() if self._gateway is None else listening(self._gateway.folder, self._reload):
            code = self._wait()
        if self._other is not None:
            _kill(self._other)
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
        if self._other is not None:
            self._other.terminate()
        timer = threading.Timer(DRAIN_SECONDS, self._kill)
        timer.daemon = True
        timer.start()

    def _launch(self, host: str, port: int) -> subprocess.Popen[bytes]:
        # The server gets its own process session: Ctrl-C reaches only this process, which lets predictions finish.
        command = [sys.executable, "-m", "cog.server.http", "--host", host]
        return subprocess.Popen(command, env={**self._env, "PORT": str(port)}, start_new_session=True)

    def _wait(self) -> int:
        """The exit code of the server, or of the one that took over last."""
        while True:
            process = self._process
            code = process.wait()
            if process is self._process:
                return code

    def _kill(self) -> None:
        _kill(self._process)
        if self._other is not None:
            _kill(self._other)

    def _announce(self) -> None:
        if not _loads(self._process, self._url):
            self._process.terminate()
            return
        while self._gateway is not None and not self._gateway.is_ready() and self._process.poll() is None:
            time.sleep(_LOOK_SECONDS)
        if self._process.poll() is None:
            gateway = "" if self._gateway is None else self._gateway.addresses
            sys.stderr.write(_READY.format(url=self._public_url, gateway=gateway, example=self._example))

    def _reload(self, tell: Callable[[str], None]) -> bool:
        """Start a server with what the package has now, and let it take over; where it does not load, nothing changes.

        Until the one before has finished its predictions, both are in memory.

        Args:
            tell: is told how it goes.

        Returns:
            Whether it has taken over.
        """
        assert self._gateway is not None
        place, digest = hidden_address(), served_model()[1]
        url = local_url(*place)
        tell("loading; predictions go on meanwhile")
        new = self._launch(*place)
        self._other = new
        if not _loads(new, url) or self._is_ending:
            _kill(new)
            new.wait()
            self._other = None
            tell("it does not load; the reason is in the server's log. The version before goes on")
            return False
        old, self._process = self._process, new
        self._other = old
        self._gateway.ask(url, digest)
        while not self._gateway.asks(url) and new.poll() is None:
            time.sleep(_LOOK_SECONDS)
        time.sleep(_GRACE_SECONDS)
        tell("it answers now; the version before finishes its predictions")
        old.terminate()
        try:
            old.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(old)
        self._other = None
        return new.poll() is None


def _loads(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until a server has loaded its model; False where it has ended, or says that it cannot."""
    while process.poll() is None:
        health = read_json(f"{url}/health-check")
        if health.get("status") == "READY":
            return True
        if health.get("status") == "SETUP_FAILED":
            sys.stderr.write(f"{health['setup']['logs']}\nThe model did not load; the reason is above.\n")
            return False
        time.sleep(_LOOK_SECONDS)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a server and its worker, which are in the same process session."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)


class GatewayProcess:
    """The gateway's process, started again if a signal ends it: the server and its predictions go on meanwhile.

    Args:
        cog_port: another port where it listens, for those who know it as Cog's.
        folder: a folder that only this process uses.
        concurrency: the number of predictions there, as in `GatewaySettings`.
    """

    def __init__(self, host: str, port: int, *, cog_port: int, folder: Path, concurrency: int) -> None:
        self._url = local_url(host, port)
        self.cog_url = local_url(host, cog_port)
        self.folder = folder
        self._servers = folder / "servers.json"
        self._model, _ = served_model()
        self._command = [sys.executable, "-m", "gateway", "--host", host, "--port", str(port)]
        self._command += ["--cog-port", str(cog_port), "--model", self._model]
        own = {"GATEWAY_SERVERS_FILE": str(self._servers)}
        self._env = {"GATEWAY_CONCURRENCY": str(concurrency), **os.environ, **own}
        self._digest = self._env.pop("GATEWAY_WEIGHTS_DIGEST", None)  # of weights without a lock
        self._env.pop("GATEWAY_UPSTREAMS", None)
        readme = ROOT / "README.md"
        if readme.exists():
            self._env.setdefault("GATEWAY_README", str(readme))
        self._is_ending = False
        self._lock = threading.Lock()  # of the process and whether it is to end
        self.failed = False  # has ended by itself, so it would end again

    def ask(self, cog_url: str, digest: str) -> None:
        """Let the gateway ask the server at an address from the moment on when that is ready.

        Args:
            digest: that of its weights; empty where there is no lock.
        """
        write_json(self._servers, {"upstreams": [cog_url], "weights_digest": digest or self._digest})

    def asks(self, cog_url: str) -> bool:
        """Whether new predictions go to the server at an address."""
        return [server["url"] for server in read_json(f"{self._url}/ready").get("servers", ())] == [cog_url]

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
        return f"local/{first_name(settings.weights_dir)}", entry.set_digest
    except (ServingError, CheckpointError, ValueError):
        return "local/model", ""
