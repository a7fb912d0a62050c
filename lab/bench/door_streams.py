"""Measures streams: how long a chunk takes from the server that sent it to the client."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx

from lab.bench.door_servers import MODEL

_SENT: Final = re.compile(rb"^data:.*?(\d+\.\d{6}) ")
_BATCH: Final = 50  # streams that are opened at the same time
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Streams:
    """What was seen of streams that were open at the same time.

    Args:
        delays: seconds from a chunk's sending to its arrival, of every chunk that arrived.
        missing: chunks that did not arrive.
    """

    delays: list[float]
    missing: int


async def read_streams(stub: str, door: str | None, *, count: int, num_chunks: int) -> Streams:
    """Open `count` streams of a stub, itself or through a door, let them send and read them to their ends.

    No HTTP library reads: it would cost more than the door.
    """
    limit = asyncio.Semaphore(_BATCH)

    async def open_one(number: int, client: httpx.AsyncClient) -> _Connection:
        async with limit:
            return await (_open_at_stub(stub, number) if door is None else _open_at_door(door, client))

    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        connections = await asyncio.gather(*(open_one(number, client) for number in range(count)))
        await client.get(f"{stub}/start")
        delays = [delay for found in await asyncio.gather(*map(_read, connections)) for delay in found]
    return Streams(delays, count * num_chunks - len(delays))


async def _read(connection: _Connection) -> list[float]:
    reader, writer = connection
    delays = []
    try:
        while line := await reader.readline():
            if (sent := _SENT.match(line)) is not None:
                delays.append(time.monotonic() - float(sent[1]))
            if line.startswith((b"event: done", b"event: completed")):
                break
    finally:
        writer.close()
    return delays


async def _open_at_stub(url: str, number: int) -> _Connection:
    return await _ask(url, f"PUT /predictions/stub{number} HTTP/1.1\r\nContent-Length: 2\r\n", "{}")


async def _open_at_door(url: str, client: httpx.AsyncClient) -> _Connection:
    created = await client.post(f"{url}/v1/models/{MODEL}/predictions", json={"input": {"text": "x"}})
    prediction_id = created.raise_for_status().json()["id"]
    return await _ask(url, f"GET /v1/predictions/{prediction_id}/stream HTTP/1.1\r\n", "")


async def _ask(url: str, head: str, body: str) -> _Connection:
    """A connection whose response has begun."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"{head}Host: {address.netloc}\r\nAccept: text/event-stream\r\n\r\n{body}".encode())
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer
