"""Clients of the gateway's benchmark, who ask for whole predictions, or read streams and time each chunk."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from lab.bench.gateway_servers import PREDICTIONS

_WAIT: Final = {"Prefer": "wait"}  # the gateway answers when the prediction has ended, as Cog always does
_ASK_AGAIN: Final = 0.002  # seconds after Cog has refused a prediction
_SENT: Final = re.compile(rb"^data:.*?(\d+\.\d{6}) ")
_BATCH: Final = 50  # streams that are opened at the same time
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def alternate(targets: Mapping[str, str], inputs: Mapping[str, Any], count: int) -> dict[str, list[float]]:
    """Seconds of predictions, one at a time, in turn at each address, so that noise falls on all alike."""
    times: dict[str, list[float]] = {name: [] for name in targets}
    async with _session() as session:
        for number in range(count + 10):
            for name, target in targets.items():
                seconds = await _predict(session, target, inputs)
                if number >= 10:  # the first ones open connections and fill caches
                    times[name].append(seconds)
    return times


async def ask_at_once(
    target: str, inputs: Mapping[str, Any], *, clients: int, seconds: float
) -> tuple[float, list[float]]:
    """Let many clients ask, each again as soon as it is answered.

    Returns:
        Predictions a second, and the seconds of each.
    """
    times: list[float] = []
    start = time.perf_counter()

    async def ask(session: aiohttp.ClientSession) -> None:
        while time.perf_counter() < start + seconds:
            times.append(await _predict(session, target, inputs))

    async with _session() as session:
        await asyncio.gather(*(ask(session) for _ in range(clients)))
    return len(times) / (time.perf_counter() - start), times


@dataclass(frozen=True, slots=True)
class Streams:
    """What was seen of streams that were open at the same time.

    Args:
        delays: seconds from a chunk's sending to its arrival, of every chunk that arrived.
        missing: chunks that did not arrive.
    """

    delays: list[float]
    missing: int


async def read_streams(stub: str, gateway: str | None, *, count: int, num_chunks: int) -> Streams:
    """Open `count` streams of a stub, itself or through a gateway, let them send and read them to their ends.

    No HTTP library reads: it would cost more than the gateway.
    """
    limit = asyncio.Semaphore(_BATCH)

    async def open_one(number: int, client: aiohttp.ClientSession) -> _Connection:
        async with limit:
            return await (_open_at_stub(stub, number) if gateway is None else _open_at_gateway(gateway, client))

    async with _session() as client:
        connections = await asyncio.gather(*(open_one(number, client) for number in range(count)))
        await (await client.get(f"{stub}/start")).read()
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


async def _open_at_gateway(url: str, client: aiohttp.ClientSession) -> _Connection:
    body = {"input": {"text": "x"}}
    async with client.post(f"{url}{PREDICTIONS}", json=body, raise_for_status=True) as created:
        prediction_id = (await created.json())["id"]
    return await _ask(url, f"GET /v1/predictions/{prediction_id}/stream HTTP/1.1\r\n", "")


async def _ask(url: str, head: str, body: str) -> _Connection:
    """A connection whose response has begun."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"{head}Host: {address.netloc}\r\nAccept: text/event-stream\r\n\r\n{body}".encode())
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60))


async def _predict(session: aiohttp.ClientSession, target: str, inputs: Mapping[str, Any]) -> float:
    """The seconds of one prediction.

    Cog sometimes refuses one although slots are free (`docs/log.md`); then it is asked again, in the measured time.
    """
    start = time.perf_counter()
    while True:
        async with session.post(target, json={"input": inputs}, headers=_WAIT) as response:
            content = await response.json()
        if response.status != HTTPStatus.CONFLICT:
            break
        await asyncio.sleep(_ASK_AGAIN)
    assert content["status"] == "succeeded", content
    return time.perf_counter() - start
