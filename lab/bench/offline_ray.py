"""Runs Ray Data's HTTP request processor on an OpenAI server that it starts, in Ray Data's environment.

python -m lab.bench.offline_ray BATCH_SIZE PAYLOADS ANSWERS PORT SERVER COMMAND…
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor

_START_SECONDS: Final = 400.0
_MEMORY: Final = 200 << 20  # bytes of Ray's shared memory


class Session(aiohttp.ClientSession):
    """Sends each request at once. Ray's processor awaits one after another, so a plain session has one at a time."""

    def post(self, url: Any, **options: Any) -> Any:
        """Start a request."""
        return asyncio.ensure_future(self._request("POST", url, **options))


def ask(batch_size: int, payloads: Path, answers: Path, port: int) -> None:
    """Send all payloads of a file, and write the answers in their order."""
    items = [{"number": i, "payload": line} for i, line in enumerate(payloads.read_text("utf-8").splitlines())]
    ray.init("local", object_store_memory=_MEMORY, logging_level="warning", include_dashboard=False)
    config = HttpRequestProcessorConfig(
        url=f"http://127.0.0.1:{port}/v1/completions", batch_size=batch_size, concurrency=1, session_factory=Session
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {"payload": json.loads(row["payload"]), "number": row["number"]},
        postprocess=lambda row: {"number": row["number"], "response": json.dumps(row["http_response"])},
    )
    blocks = -(-len(items) // batch_size)
    found = processor(ray.data.from_items(items, override_num_blocks=blocks)).take_all()
    with answers.open("w", encoding="utf-8") as file:
        for row in sorted(found, key=lambda row: int(row["number"])):
            response = json.loads(row["response"])
            choice, usage = response["choices"][0], response["usage"]
            answer = {"text": choice["text"], "finish": choice["finish_reason"], "tokens": usage["completion_tokens"]}
            file.write(json.dumps(answer) + "\n")


def wait(server: subprocess.Popen[bytes], port: int) -> None:
    """Return when the server answers; exits if it does not."""
    until = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit("the server did not start")


def main(batch_size: str, payloads: str, answers: str, port: str, *command: str) -> None:
    """Start the server, ask, and end it."""
    environment = {**os.environ, "PATH": f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"}
    server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    try:
        wait(server, int(port))
        ask(int(batch_size), Path(payloads), Path(answers), int(port))
    finally:
        ray.shutdown()
        server.terminate()
        server.wait()


if __name__ == "__main__":
    arguments: Sequence[str] = sys.argv[1:]
    main(*arguments)
