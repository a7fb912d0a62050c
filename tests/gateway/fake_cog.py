"""A Cog server that does what a test tells it: breaks off, is full, is silent. Real Cog answers the other tests."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self


class FakeCog:
    """Listens while it is entered.

    Args:
        held: `gate` holds answers back behind their first piece until a test sets it.
        pieces: the pieces of each answer.
        break_after: the number of pieces after which the connection is cut; None never.
        full: whether it answers 409.
        properties: the JSON Schemas of the inputs.
        end: more of the last event, such as logs and metrics.
    """

    def __init__(
        self,
        *,
        held: bool = False,
        pieces: tuple[str, ...] = ("a", "b", "c"),
        break_after: int | None = None,
        full: bool = False,
        properties: dict[str, Any] | None = None,
        end: dict[str, Any] | None = None,
    ) -> None:
        self.pieces = pieces
        self.break_after = break_after
        self.full = full
        schemas = {"Input": {"properties": properties or {"text": {"type": "string"}}}}
        self.schema = {"info": {"version": "0.23.1"}, "components": {"schemas": schemas}}
        self.end = end or {}
        self.status = "READY"
        self.is_silent = False  # its health checks are not answered
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()
        self.asked: list[str] = []  # ids of the predictions, in order of arrival
        self.requests: list[tuple[str, dict[str, Any]]] = []  # head and body of each prediction's request
        self.paths: list[str] = []  # of all requests
        self.cancelled: list[str] = []
        self.open_streams = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        await self.listen(0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.gate.set()
        await self.stop()

    async def listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def drain(self) -> None:
        """Take no more connections and finish what runs, as Cog does after SIGTERM."""
        self._server.close()

    async def stop(self) -> None:
        self.drain()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            self.paths.append(path)
            length = next((line for line in head.lower().splitlines() if line.startswith("content-length:")), ":0")
            body = await reader.readexactly(int(length.partition(":")[2]))
            if method == "PUT":
                self.requests.append((head, json.loads(body)))
            await self._answer(method, path, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, method: str, path: str, writer: asyncio.StreamWriter) -> None:
        name = path.rpartition("/")[2]
        if name == "cancel":
            self.cancelled.append(path.split("/")[2])
            _respond(writer, 200, {})
        elif method == "PUT":
            await self._predict(name, writer)
        elif name == "health-check" and self.is_silent:
            await self.gate.wait()
        else:
            _respond(writer, 200, {"status": self.status} if name == "health-check" else self.schema)
        await writer.drain()

    async def _predict(self, name: str, writer: asyncio.StreamWriter) -> None:
        self.asked.append(name)
        if self.full:
            _respond(writer, 409, {"error": "At capacity"})
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        self.open_streams += 1
        try:
            for number, piece in enumerate(self.pieces):
                if number == self.break_after:
                    writer.transport.abort()
                    return
                await _send(writer, "output", {"chunk": piece, "index": number})
                await self.gate.wait()
            end = {"id": name, "status": "succeeded", "output": [*self.pieces], "logs": "", **self.end}
            await _send(writer, "completed", end)
        finally:
            self.open_streams -= 1


def _respond(writer: asyncio.StreamWriter, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)


async def _send(writer: asyncio.StreamWriter, name: str, data: dict[str, Any]) -> None:
    writer.write(f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode())
    await writer.drain()
