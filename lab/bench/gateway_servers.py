"""Starts the servers that the gateway's benchmark asks: Cog, a stub of it, and the gateway."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from lab.endurance.cog_process import CogServer, ServerFailedError, free_port
from pipeline.paths import ROOT

START_SECONDS = 120.0
MODEL = "local/bench"
PREDICTIONS = f"/v1/models/{MODEL}/predictions"  # of the gateway


def cog_server(folder: Path, *, concurrency: int) -> CogServer:
    """Cog's server with the fake engine."""
    env = {"ENGINE": "fake", "MAX_NUM_SEQS": str(concurrency), "COG_LOG_LEVEL": "warning"}
    return CogServer("predict.py:Predictor", env=env, log=folder / "cog.log", concurrency=concurrency)


def slow_server(folder: Path, number: int, *, concurrency: int, seconds: float) -> CogServer:
    """One of several of Cog's servers, with a model that takes so long for each prediction."""
    env = {"PREDICT_SECONDS": str(seconds), "COG_LOG_LEVEL": "warning"}
    predictor = "lab/bench/slow_predict.py:SlowPredictor"
    return CogServer(predictor, env=env, log=folder / f"slow-{number}.log", concurrency=concurrency)


@contextmanager
def stub_server(folder: Path, *, num_chunks: int, interval: float) -> Iterator[str]:
    """A stub that streams; its address."""
    port = free_port()
    command = [sys.executable, "-m", "lab.bench.stub_cog", str(port), str(num_chunks), str(interval)]
    url = f"http://127.0.0.1:{port}"
    with running(command, {}, folder / "stub.log", f"{url}/health-check", '"READY"'):
        yield url


@contextmanager
def gateway_server(folder: Path, upstream: str, *, max_active: int) -> Iterator[str]:
    """The gateway with its defaults, predictions kept on disk; its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = {
        "GATEWAY_DATABASE": str(folder / f"{port}.sqlite"),
        "GATEWAY_MAX_ACTIVE": str(max_active),
        "GATEWAY_DRAIN_SECONDS": "0",
    }
    command = [sys.executable, "-m", "gateway", "--upstream", upstream, "--port", str(port), "--model", MODEL]
    with running(command, env, folder / f"gateway-{port}.log", f"{url}/ready", '"ready"'):
        yield url


@contextmanager
def served_playground(
    folder: Path, engine: str, *, public_url: str = "", seconds: float = START_SECONDS
) -> Iterator[str]:
    """All that scripts/serve starts, once the playground answers, within so many seconds; its address."""
    cog_port, port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}/"
    options = ["--engine", engine, "--port", str(cog_port), "--gateway-port", str(port)]
    command = [sys.executable, str(ROOT / "scripts" / "serve"), *options]
    env = {"GATEWAY_DATABASE": str(folder / f"{port}.sqlite"), "GATEWAY_PUBLIC_URL": public_url}
    with running(command, env, folder / f"serve-{port}.log", url, 'id="input-title"', seconds=seconds):
        yield url


@contextmanager
def running(
    command: Sequence[str], env: Mapping[str, str], log: Path, url: str, word: str, *, seconds: float = START_SECONDS
) -> Iterator[None]:
    """A process, once its address answers with this word, within so many seconds; its log is in a file."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **env}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + seconds
        while not _says(url, word):
            if time.monotonic() > deadline or process.poll() is not None:
                text = log.read_text(errors="replace")[-2000:]
                raise ServerFailedError(f"{' '.join(command)} did not start:\n{text}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def _says(url: str, word: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return word in httpx.get(url, timeout=10, trust_env=False).text
    return False
