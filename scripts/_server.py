"""Cog's HTTP server as a child process.

Owns: its environment, the wait until it is ready, and its orderly end. Knows nothing of the
options of scripts/serve.

    sys.exit(Server("127.0.0.1", 5000, concurrency=32).run())
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

DRAIN_SECONDS = 60.0  # for predictions in flight; Cog itself has no limit
# Cog's new names are run.py and Runner; this package keeps the old ones and pins the version that has both.
_KNOWN_WARNINGS = (
    "ignore:Predictor.predict() is deprecated:DeprecationWarning,"
    "ignore:BasePredictor is deprecated:DeprecationWarning"
)
_EXAMPLE = """
READY on {url}  (Ctrl-C ends it)

  curl -s {url}/predictions -H 'Content-Type: application/json' \\
    -d '{{"input": {{"nlq": "slowest traces", "cols": "[\\"name\\", \\"duration_ms\\"]"}}}}'

  With -N -H 'Accept: text/event-stream' the query shows while it is written. State: {url}/health-check

"""


class Server:
    """One run of the server.

    Args:
        host, port: where it listens.
        concurrency: predictions at once.
    """

    def __init__(self, host: str, port: int, concurrency: int) -> None:
        self._url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
        self._command = [sys.executable, "-m", "cog.server.http", "--host", host]
        self._env = {
            "LOG_FORMAT": "console",
            "COG_LOG_LEVEL": "warning",
            "PYTHONWARNINGS": _KNOWN_WARNINGS,
            **os.environ,
            "PORT": str(port),
            "COG_PREDICT_TYPE_STUB": "predict.py:Predictor",
            "COG_MAX_CONCURRENCY": str(concurrency),
        }
        self._is_ending = False

    def run(self) -> int:
        """Until a signal or the server's own end; returns the exit code."""
        # A session of its own, so that Ctrl-C reaches only us and the worker is not cut off.
        self._process = subprocess.Popen(self._command, env=self._env, start_new_session=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end)
        threading.Thread(target=self._announce, daemon=True).start()
        code = self._process.wait()
        return 0 if self._is_ending and code in (0, -signal.SIGTERM) else code or 1

    def _end(self, *_: object) -> None:
        """Drain at the first signal, end at once at the second or when draining takes too long."""
        if self._is_ending:
            self._kill()
            return
        self._is_ending = True
        sys.stderr.write("finishing what is in flight; once more to end now\n")
        self._process.terminate()
        timer = threading.Timer(DRAIN_SECONDS, self._kill)
        timer.daemon = True
        timer.start()

    def _kill(self) -> None:
        """The server and its worker, which share a session."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def _announce(self) -> None:
        while self._process.poll() is None:
            health = self._health()
            if health.get("status") == "READY":
                sys.stderr.write(_EXAMPLE.format(url=self._url))
                return
            if health.get("status") == "SETUP_FAILED":
                sys.stderr.write(
                    f"{health['setup']['logs']}\nThe model did not load; the reason stands above.\n"
                )
                self._process.terminate()
                return
            time.sleep(0.2)

    def _health(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self._url}/health-check", timeout=10) as response:
                return dict(json.load(response))
        except (OSError, ValueError):
            return {}
