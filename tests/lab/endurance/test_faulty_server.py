"""Rows that only ask a server fail when it has a fault, and pass without one."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import save_file

from lab.endurance.command import ROWS
from lab.endurance.row import QUICK, verdict
from serving.errors import WeightsError
from serving.weights import verify

CROWD = 4  # predictions at once, beyond which some faults show
NUM_BLOCKS = 64
MAPPED = 16 << 20  # bytes, which are resident as often as they are mapped
HELD_SECONDS = 1.0  # for which that is so
POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Faults:
    """What is wrong with a server."""

    fails_in_a_crowd: bool = False
    changes_in_a_crowd: bool = False
    always_fails: bool = False
    generations: int = 1  # that it counts for each prediction
    ignores_cancel: bool = False
    ignores_disconnect: bool = False
    keeps_blocks: bool = False  # of predictions that are ended
    frees_late: bool = False
    keeps_requests: bool = False  # that are ended
    mixes_answers: bool = False  # after one is ended
    serves_changed_weights: bool = False
    starts_with_changed_weights: bool = False
    hides_which_file: bool = False
    drops_schemas: bool = False
    hides_which_input: bool = False
    takes_memory: bool = False  # while it compiles its first schema


class FaultyServer:
    """Answers as Cog does, in a thread of its own; every prediction takes some seconds, and more if it is streamed."""

    def __init__(self, faults: Faults, seconds: float, stream_seconds: float = 0.0) -> None:
        self.faults = faults
        self.seconds, self.stream_seconds = seconds, stream_seconds
        self.num_requests = self.running = 0
        self.num_free_blocks = NUM_BLOCKS
        self.aborted, self.steps_until_free = 0, list[int]()
        self.weights: Path | None = None
        self.process = SimpleNamespace(pid=os.getpid())
        self._known: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._has_compiled = False
        self._ended: dict[str, Any] = {}  # inputs of the prediction that was ended last

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
        app.router.add_post("/predictions/{id}/cancel", self._cancel)
        return app

    async def _post(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.text())
        except (ValueError, RecursionError):
            return web.json_response({}, status=422)
        return web.json_response(await self._answer(body["input"], self.seconds))

    async def _put(self, request: web.Request) -> web.StreamResponse:
        name, body = request.match_info["id"], await request.json()
        if name not in self._known:
            seconds = self.seconds + self.stream_seconds
            self._known[name] = asyncio.ensure_future(self._answer(body["input"], seconds))
        prediction = self._known[name]
        if "text/event-stream" not in request.headers.get("Accept", ""):
            return web.json_response(await asyncio.shield(prediction))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await _send(response, "start", {})
        await _send(response, "output", {"chunk": ""})
        while not prediction.done():
            await asyncio.sleep(POLL_SECONDS)
            if request.transport is None or request.transport.is_closing():
                if not self.faults.ignores_disconnect:
                    prediction.cancel()
                return response
        end = {"status": "canceled", "output": None} if prediction.cancelled() else prediction.result()
        if end["output"]:
            await _send(response, "output", {"chunk": end["output"]})
        await _send(response, "completed", end)
        return response

    async def _cancel(self, request: web.Request) -> web.Response:
        if not self.faults.ignores_cancel:
            self._known[request.match_info["id"]].cancel()
        return web.json_response({})

    async def _answer(self, inputs: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.num_requests += self.faults.generations
        self.running += 1
        self.num_free_blocks -= 1
        try:
            await asyncio.sleep(seconds)
            if self.faults.takes_memory and not self._has_compiled and "json_schema" in inputs:
                self._has_compiled = True
                with _memory():
                    await asyncio.sleep(HELD_SECONDS)
        except asyncio.CancelledError:
            self._end(inputs)
            raise
        self.num_free_blocks += 1
        crowded, self.running = self.running > CROWD, self.running - 1
        error = "IndexError" if self.faults.always_fails or (crowded and self.faults.fails_in_a_crowd) else ""
        if "json_schema" in inputs and not self.faults.drops_schemas:
            error = error or ("invalid" if self.faults.hides_which_input else "json_schema: too large")
        metrics = {"input_token_count": 100, "output_token_count": 50}
        if error:
            return {"status": "failed", "error": error, "output": None, "metrics": metrics}
        if self.faults.mixes_answers:
            inputs = self._ended or inputs
        text = f"answer to {json.dumps(inputs)[:200]}" + " ?" * (crowded and self.faults.changes_in_a_crowd)
        if self.weights is not None and self.faults.serves_changed_weights:
            text += f" with {zlib.crc32((self.weights / 'model.safetensors').read_bytes())}"
        return {"status": "succeeded", "output": text, "metrics": metrics}

    def _end(self, inputs: dict[str, Any]) -> None:
        self._ended = inputs
        self.aborted += 1
        self.running -= not self.faults.keeps_requests
        self.num_free_blocks += not self.faults.keeps_blocks
        if self.running == 0:
            self.steps_until_free.append(3 if self.faults.frees_late else 1)


async def _send(response: web.StreamResponse, name: str, data: dict[str, Any]) -> None:
    with suppress(ConnectionError):
        await response.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())


@contextmanager
def _memory() -> Iterator[None]:
    """Much memory is resident inside the `with` block, and little is used."""
    with tempfile.TemporaryFile() as file, ExitStack() as stack:
        file.truncate(MAPPED)
        for _ in range(40):
            bytes(stack.enter_context(mmap.mmap(file.fileno(), MAPPED, access=mmap.ACCESS_READ))[::4096])
        yield


class FaultyStage:
    """Lets rows use a faulty server as if it were Cog's."""

    def __init__(self, server: FaultyServer, folder: Path) -> None:
        self.server = server
        self.weights = folder / "weights"
        self.weights.mkdir()
        save_file({"tensor": np.arange(100)}, self.weights / "model.safetensors")
        (self.weights / "config.json").write_text("{}")
        self._folder = folder

    @contextmanager
    def own_server(self, env: dict[str, str] | None = None, **_: object) -> Iterator[FaultyServer]:
        env = env or {}
        self.server.num_free_blocks = int(env.get("NUM_BLOCKS", NUM_BLOCKS))
        self.server.weights = Path(env["WEIGHTS_DIR"]) if "WEIGHTS_DIR" in env else None
        yield self.server

    chat_server = own_server

    def failed_start(self, env: dict[str, str]) -> tuple[str, str]:
        try:
            verify(Path(env["WEIGHTS_DIR"]), Path(env["WEIGHTS_LOCK"]))
        except WeightsError as error:
            if not self.server.faults.starts_with_changed_weights:
                return "SETUP_FAILED", "damaged" if self.server.faults.hides_which_file else str(error)
        return "READY", ""

    def stats(self, server: FaultyServer) -> dict[str, Any]:
        return {
            "num_requests": server.num_requests,
            "num_blocks": NUM_BLOCKS,
            "num_free_blocks": server.num_free_blocks,
            "num_running": server.running,
            "num_waiting": 0,
            "aborted": {"before a token": server.aborted, "after a token": 0},
            "steps_until_free": list(server.steps_until_free),
        }

    def subfolder(self, name: str) -> Path:
        (self._folder / name).mkdir()
        return self._folder / name


@pytest.mark.parametrize(
    ("name", "faults", "finding"),
    [
        *(
            (name, Faults(), None)
            for name in ("soak", "cache", "overload", "id", "rude", "cancel", "weights", "grammar")
        ),
        ("soak", Faults(always_fails=True), "answers that differ from those given alone"),
        ("soak", Faults(fails_in_a_crowd=True), "answers that differ from those given alone"),
        ("soak", Faults(changes_in_a_crowd=True), "answers that differ from those given alone"),
        ("cache", Faults(always_fails=True), "predictions lost"),
        ("cache", Faults(fails_in_a_crowd=True), "predictions lost"),
        ("overload", Faults(always_fails=True), "neither answered nor refused"),
        ("overload", Faults(fails_in_a_crowd=True), "neither answered nor refused"),
        ("id", Faults(always_fails=True), "requests that were answered wrongly"),
        ("id", Faults(generations=0), "generations besides the one, or none"),
        ("id", Faults(generations=2), "generations besides the one, or none"),
        ("rude", Faults(always_fails=True), "others without an answer"),
        ("cancel", Faults(ignores_cancel=True), "ends that the engine does not hear of"),
        ("cancel", Faults(ignores_disconnect=True), "ends that the engine does not hear of"),
        ("cancel", Faults(keeps_blocks=True), "KV blocks lost"),
        ("cancel", Faults(frees_late=True), "steps until every KV block is back"),
        ("cancel", Faults(keeps_requests=True), "predictions that stay in the engine"),
        ("cancel", Faults(mixes_answers=True), "predictions with text of another"),
        ("weights", Faults(always_fails=True), "running: errors"),
        ("weights", Faults(serves_changed_weights=True), "running: wrong answers"),
        ("weights", Faults(starts_with_changed_weights=True), "servers that started, or did not name the file"),
        ("weights", Faults(hides_which_file=True), "servers that started, or did not name the file"),
        ("grammar", Faults(fails_in_a_crowd=True), "others without an answer"),
        ("grammar", Faults(drops_schemas=True), "neither followed nor refused by name"),
        ("grammar", Faults(hides_which_input=True), "neither followed nor refused by name"),
        ("grammar", Faults(takes_memory=True), "more resident memory"),
    ],
)
def test_a_row_fails_for_a_fault_and_passes_without(name, faults, finding, tmp_path):
    row = next(row for row in ROWS if row.name == name)
    amounts = replace(QUICK, soak=60, rude_seconds=0.3)
    seconds = 0.5 if name == "overload" else 0.02  # of a slow server, ten times the load is still little
    stream_seconds = 1.0 if name == "cancel" else 0.0  # so that predictions can be ended
    with FaultyServer(faults, seconds, stream_seconds).running_in_thread() as server:
        result = row.run(FaultyStage(server, tmp_path), amounts)
    assert verdict(result, amounts) == ("failed" if finding else "passed"), result
    assert finding is None or finding in [check.what for check in result.checks if not check.passed], result
