"""Rows that only ask a server fail when it has a fault, and pass without one."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from pipeline.endurance.all_rows import ROWS
from pipeline.endurance.row import QUICK, verdict

CROWD = 4  # predictions at once, beyond which some faults show


@dataclass
class Faults:
    """What is wrong with a server."""

    fails_in_a_crowd: bool = False
    changes_in_a_crowd: bool = False
    always_fails: bool = False
    generations: int = 1  # that it counts for each prediction


class FaultyServer:
    """Answers as Cog does, in a thread of its own; every prediction takes some seconds."""

    def __init__(self, faults: Faults, seconds: float) -> None:
        self.faults = faults
        self.seconds = seconds
        self.num_requests = self.running = 0
        self.process = SimpleNamespace(pid=os.getpid())
        self._known: dict[str, asyncio.Future[dict[str, Any]]] = {}

    @contextmanager
    def running_in_thread(self) -> Iterator[FaultyServer]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        runner = web.AppRunner(self._app())
        try:
            asyncio.run_coroutine_threadsafe(runner.setup(), loop).result(60)
            site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0)
            asyncio.run_coroutine_threadsafe(site.start(), loop).result(60)
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/predictions", self._post)
        app.router.add_put("/predictions/{id}", self._put)
        return app

    async def _post(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.text())
        except (ValueError, RecursionError):
            return web.json_response({}, status=422)
        return web.json_response(await self._answer(body["input"]))

    async def _put(self, request: web.Request) -> web.StreamResponse:
        name, body = request.match_info["id"], await request.json()
        if name not in self._known:
            self._known[name] = asyncio.ensure_future(self._answer(body["input"]))
        end = await asyncio.shield(self._known[name])
        if "text/event-stream" not in request.headers.get("Accept", ""):
            return web.json_response(end)
        events = f"event: output\ndata: {json.dumps({'chunk': end['output']})}\n\n" if end["output"] else ""
        events += f"event: completed\ndata: {json.dumps(end)}\n\n"
        return web.Response(text=events, content_type="text/event-stream")

    async def _answer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.num_requests += self.faults.generations
        self.running += 1
        try:
            await asyncio.sleep(self.seconds)
            crowded = self.running > CROWD
            metrics = {"input_token_count": 100, "output_token_count": 50}
            if self.faults.always_fails or (crowded and self.faults.fails_in_a_crowd):
                return {"status": "failed", "error": "IndexError", "output": None, "metrics": metrics}
            text = f"answer to {json.dumps(inputs)[:200]}" + " ?" * (crowded and self.faults.changes_in_a_crowd)
            return {"status": "succeeded", "output": text, "metrics": metrics}
        finally:
            self.running -= 1


class FaultyStage:
    """Lets rows use a faulty server as if it were Cog's."""

    def __init__(self, server: FaultyServer) -> None:
        self.server = server
        self.progress = lambda done: None

    @contextmanager
    def own_server(self, env: dict[str, str] | None = None, **_: object) -> Iterator[FaultyServer]:
        self.num_blocks = int((env or {}).get("NUM_BLOCKS", 0))
        yield self.server

    def stats(self, server: FaultyServer) -> dict[str, Any]:
        return {"num_requests": server.num_requests, "num_free_blocks": getattr(self, "num_blocks", 0)}

    def subfolder(self, name: str) -> Path:
        raise AssertionError(f"no files are needed, but {name} is")


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        *((name, Faults()) for name in ("soak", "cache", "overload", "id", "rude")),
        *((name, Faults(fails_in_a_crowd=True)) for name in ("soak", "cache", "overload")),
        *((name, Faults(always_fails=True)) for name in ("soak", "cache", "overload", "id", "rude")),
        ("soak", Faults(changes_in_a_crowd=True)),
        ("id", Faults(generations=0)),
        ("id", Faults(generations=2)),
    ],
)
def test_a_row_fails_for_a_fault_and_passes_without(name, faults):
    row = next(row for row in ROWS if row.name == name)
    amounts = replace(QUICK, soak=60, rude_seconds=0.3)
    seconds = 0.5 if name == "overload" else 0.02  # of a slow server, ten times the load is still little
    with FaultyServer(faults, seconds).running_in_thread() as server:
        result = row.run(FaultyStage(server), amounts)
    assert verdict(result, amounts) == ("passed" if faults == Faults() else "failed"), result
