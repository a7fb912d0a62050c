"""A server in a process of its own, with a worker, and with faults: `python -m … FOLDER CONCURRENCY FAULTS`.

It answers as Cog does, and as a gateway in front of it does. A streamed prediction lasts until the worker or the server
ends, one that the gateway has created until the worker stops. The folder gets its port, and what it writes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

PORT = "port"  # file
POLL_SECONDS = 0.01
NUM_LATE = 3  # questions after SIGTERM, which a server awaits that accepts them
WORKER = "import sys; sys.stdin.read()"  # ends with the server
LONELY_WORKER = "import time; time.sleep(60)"


@dataclass(frozen=True)
class ProcessFaults:
    """What is wrong with it."""

    always_fails: bool = False
    stays_ready: bool = False  # when its worker is killed or stopped
    forgets_waiters: bool = False  # when its worker is killed or stopped
    drops_predictions: bool = False  # at SIGTERM
    accepts_at_the_end: bool = False  # after SIGTERM
    exit_code: int = 0
    leaves_its_worker: bool = False  # when it is killed
    leaves_half_a_file: bool = False  # when it is killed
    answers_otherwise_later: bool = False  # after another one has been there
    needs_the_disk: bool = False
    breaks_without_a_disk: bool = False  # as a gateway
    refuses_for_ever: bool = False  # as a gateway, after the disk was full


class FaultyProcess:
    """What runs in the process."""

    def __init__(self, folder: Path, concurrency: int, faults: ProcessFaults) -> None:
        self.folder, self.concurrency, self.faults = folder, concurrency, faults
        self.num_requests = self.num_running = self.num_late = 0
        self.is_ending = self.was_full = False
        self.is_second = (folder / PORT).exists()
        code = LONELY_WORKER if faults.leaves_its_worker else WORKER
        self.worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)

    async def run(self) -> None:
        app = web.Application()
        app.router.add_get("/health-check", self.health)
        app.router.add_get("/stats", self.stats)
        app.router.add_post("/predictions", self.post)
        app.router.add_put("/predictions/{id}", self.put)
        app.router.add_get("/ready", self.ready)
        app.router.add_post("/v1/models/{owner}/{name}/predictions", self.create)
        app.router.add_get("/v1/predictions/{id}", self.get)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ends = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
        partial = self.folder / f"{PORT}.partial"
        partial.write_text(str(runner.addresses[0][1]))
        partial.replace(self.folder / PORT)
        await ends.wait()
        self.is_ending = True
        if not self.faults.drops_predictions:
            while self.num_running:
                await asyncio.sleep(POLL_SECONDS)
            await runner.cleanup()
        self.worker.kill()
        os._exit(self.faults.exit_code)

    async def health(self, request: web.Request) -> web.Response:
        is_ready = self.faults.stays_ready or self._works()
        return web.json_response({"status": "READY" if is_ready else "UNHEALTHY"})

    async def ready(self, request: web.Request) -> web.Response:
        is_ready = self.faults.stays_ready or self._works()
        return web.json_response({"status": "ready" if is_ready else "unavailable"})

    async def stats(self, request: web.Request) -> web.Response:
        return web.json_response({"num_requests": self.num_requests, "num_running": self.num_running})

    async def post(self, request: web.Request) -> web.Response:
        inputs = (await request.json())["input"]
        self.num_late += self.is_ending
        if not self._admits():
            return web.json_response({}, status=409)
        return web.json_response(self._answer(inputs))

    async def put(self, request: web.Request) -> web.StreamResponse:
        inputs = (await request.json())["input"]
        if not self._admits():
            return web.json_response({}, status=409)
        self.num_requests += 1
        self.num_running += 1
        partial = self.folder / f"{self.num_requests}.partial"
        if self.faults.leaves_half_a_file:
            partial.write_text("half")
        while not self._can_end():
            await asyncio.sleep(POLL_SECONDS)
        partial.unlink(missing_ok=True)
        end = self._answer(inputs) if self._works() else {"status": "failed", "error": "the worker died"}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"event: completed\ndata: {json.dumps(end)}\n\n".encode())
        await response.write_eof()
        self.num_running -= 1
        return response

    async def create(self, request: web.Request) -> web.Response:
        if self._can_write():
            self.num_running += 1
            return web.json_response({"id": "a"}, status=503 if self.was_full and self.faults.refuses_for_ever else 201)
        self.was_full = True
        return web.json_response({}, status=500 if self.faults.breaks_without_a_disk else 503)

    async def get(self, request: web.Request) -> web.Response:
        is_over = not self._works() and not self.faults.forgets_waiters
        return web.json_response({"status": "failed" if is_over else "processing", "output": "an"})

    def _works(self) -> bool:
        return self.worker.poll() is None and psutil.Process(self.worker.pid).status() != psutil.STATUS_STOPPED

    def _admits(self) -> bool:
        is_open = self.faults.accepts_at_the_end or not self.is_ending
        return is_open and self.num_running < self.concurrency

    def _can_end(self) -> bool:
        if not self._works():
            return not self.faults.forgets_waiters
        if self.faults.accepts_at_the_end:
            return self.num_late == NUM_LATE
        return self.faults.always_fails or self.is_ending

    def _answer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if self.faults.always_fails or (self.faults.needs_the_disk and not self._can_write()):
            return {"status": "failed", "error": "IndexError"}
        text = "!" if self.is_second and self.faults.answers_otherwise_later else "."
        return {"status": "succeeded", "output": f"answer to {inputs['nlq']}{text}"}

    def _can_write(self) -> bool:
        try:
            with (self.folder / "answers.txt").open("a") as file:
                file.write("an answer\n")
        except OSError:
            return False
        return True


def arguments(folder: Path, concurrency: int, faults: ProcessFaults) -> list[str]:
    """The command that starts it."""
    return [sys.executable, "-m", __name__, str(folder), str(concurrency), json.dumps(asdict(faults))]


if __name__ == "__main__":
    _folder, _concurrency, _faults = sys.argv[1:]
    asyncio.run(FaultyProcess(Path(_folder), int(_concurrency), ProcessFaults(**json.loads(_faults))).run())
