"""A Cog server with nothing behind it, for measuring the gateway: it streams the time at even intervals.

Streams wait until somebody asks for /start, so that all are open before the first one sends.

python -m lab.bench.stub_cog PORT CHUNKS INTERVAL_SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from aiohttp import web

_SCHEMA = {
    "info": {"version": "0"},
    "components": {
        "schemas": {
            "Input": {"properties": {"text": {"type": "string"}}},
            "Output": {"type": "array", "items": {"type": "string"}, "x-cog-array-type": "iterator"},
        }
    },
}


class StubCog:
    """Answers what the gateway asks of a Cog server, each prediction with chunks that are `interval` seconds apart."""

    def __init__(self, num_chunks: int, interval: float) -> None:
        self._num_chunks = num_chunks
        self._interval = interval
        self._num_streams = 0
        self._start = asyncio.Event()

    def app(self) -> web.Application:
        """The server's routes."""
        app = web.Application()
        app.router.add_put("/predictions/{id}", self._stream)
        app.router.add_get("/start", self._begin)
        app.router.add_get("/health-check", self._health)
        app.router.add_get("/openapi.json", self._schema)
        return app

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._num_streams += 1
        phase = self._num_streams * 0.618 % 1  # streams do not send at the same moment
        await self._start.wait()
        for number in range(self._num_chunks):
            await asyncio.sleep(self._interval * (1 if number else phase))
            await _send(response, "output", {"chunk": f"{time.monotonic():.6f} ", "index": number})
        end = {"id": request.match_info["id"], "status": "succeeded", "output": None, "logs": ""}
        await _send(response, "completed", end)
        return response

    async def _begin(self, request: web.Request) -> web.Response:
        self._start.set()
        self._start = asyncio.Event()  # for the next streams
        return web.Response()

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "READY"})

    async def _schema(self, request: web.Request) -> web.Response:
        return web.json_response(_SCHEMA)


async def _send(response: web.StreamResponse, name: str, data: dict[str, Any]) -> None:
    await response.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())


if __name__ == "__main__":
    port, num_chunks, interval = sys.argv[1:]
    stub = StubCog(int(num_chunks), float(interval))
    web.run_app(stub.app(), host="127.0.0.1", port=int(port), backlog=2048, print=None)
