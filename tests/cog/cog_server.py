"""The real Cog server as a child process, and a folder of weights small enough to start it in a second.

with CogServer("predict.py:Predictor", env={"ENGINE": "fake"}) as server: server.predict(nlq=…, cols=…)
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
from safetensors.numpy import save_file

from serving.weights import LockedSource, LockedWeights, WeightsLock, lock_files, set_digest
from tests.tiny_tokenizers import byte_level, save

ROOT = Path(__file__).resolve().parents[2]


class CogServer:
    """A server as a context manager: ready on entry, stopped on exit.

    Args:
        reference: the value of `predict` in cog.yaml, relative to the package.
        env: environment variables of the server.
        concurrency: how many predictions run at the same time; one more is refused.
        log: file for its output.
        setup_seconds: time limit for becoming ready.
        package: the folder in which it runs.
    """

    def __init__(
        self,
        reference: str,
        *,
        env: dict[str, str],
        log: Path,
        concurrency: int = 32,
        setup_seconds: float = 120,
        package: Path = ROOT,
    ) -> None:
        self.log = log
        self.package = package
        self._setup_seconds = setup_seconds
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PORT": str(self.port),
            "COG_PREDICT_TYPE_STUB": reference,
            "COG_MAX_CONCURRENCY": str(concurrency),
            "PYTHONPATH": str(package),
            **env,
        }
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=300)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "cog.server.http", "--host", "127.0.0.1"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=self.package, env=self._env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
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
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def health(self) -> dict[str, Any]:
        return self.client.get("/health-check").json()

    def wait_for(self, status: str, seconds: float = 120) -> dict[str, Any]:
        """Wait until the health check has this status, and return it."""
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
            time.sleep(0.1)
        raise AssertionError(f"the server is not {status} but {seen}:\n{self.log.read_text()[-4000:]}")

    def post(self, **inputs: Any) -> httpx.Response:
        return self.client.post("/predictions", json={"input": inputs})

    @contextmanager
    def stream(self, prediction_id: str, **inputs: Any) -> Iterator[Iterator[tuple[str, Any, float]]]:
        """Server-sent events of a prediction: name, data, and time of arrival.

        Retries when the server says that it is full: with 8 simultaneous requests on an overloaded machine, coglet
        0.23.1 has refused the last although 24 of its 32 slots were free (docs/log.md).
        """
        with ExitStack() as stack:
            for _ in range(5):
                body = {"id": prediction_id, "input": inputs}
                opened = self.client.stream(
                    "PUT", f"/predictions/{prediction_id}", json=body, headers={"Accept": "text/event-stream"}
                )
                response = stack.enter_context(opened)
                if response.status_code != 409:
                    break
                time.sleep(0.1)
            assert response.status_code == 200, response.read()
            yield _events(response)


def _events(response: httpx.Response) -> Iterator[tuple[str, Any, float]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            yield name, json.loads(line.removeprefix("data:")), time.monotonic()


def make_tiny_weights(
    folder: Path,
    *,
    surface: str = "json",
    task: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write a tokenizer, a task file and their lock, enough for the fake engine; returns the settings for them.

    Args:
        folder: of the weights' folder and the lock.
        surface: of the Honeycomb task.
        task: another task's file.
        files: texts of more files in the weights' folder.
    """
    weights = folder / "tiny"
    weights.mkdir()
    save(byte_level(), weights)
    save_file({"unused": np.zeros(1, np.float32)}, weights / "model.safetensors")
    honeycomb = {"task": "honeycomb", "name": "tiny", "prompt": "columns-first", "surface": surface}
    for name, text in {"task.json": json.dumps(task or honeycomb), **(files or {})}.items():
        (weights / name).write_text(text)
    lock = folder / "weights.lock"
    lock.write_text(lock_text(weights))
    return {"WEIGHTS_DIR": str(weights), "WEIGHTS_LOCK": str(lock)}


def lock_text(weights: Path) -> str:
    files = lock_files(weights)
    entry = LockedWeights(
        name=weights.name,
        target=f"/src/weights/{weights.name}",
        sources=(LockedSource(uri=f"file://{weights}", fingerprint=set_digest(files)),),
        imported_at="2026-01-01T00:00:00Z",
        set_digest=set_digest(files),
        size=sum(file.size for file in files),
        files=files,
    )
    return WeightsLock(version=1, envelope_format="", weights=(entry,)).text()
