"""What the door's benchmark measures: requests, several Cog servers, streams, and the start. Times in milliseconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.bench.door_pages import axe_findings
from lab.bench.door_requests import alternate, ask_at_once, of_cog, of_door
from lab.bench.door_servers import cog_server, door_server, served_playground, slow_server, stub_server
from lab.bench.door_streams import Streams, read_streams

_INPUTS: Final = {"nlq": "slowest traces", "cols": '["name", "duration_ms"]'}
_STALL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much is measured."""

    requests: int = 1000
    clients: int = 64
    seconds: float = 15.0
    streams: int = 1000
    chunks: int = 20
    interval: float = 1.0  # seconds between two chunks of one stream
    slots: int = 16  # predictions at once on each of several servers
    predict_seconds: float = 0.25
    engines: tuple[str, ...] = ("fake", "auto")  # with which scripts/serve is started


QUICK: Final = Amounts(
    requests=20, clients=8, seconds=1.0, streams=50, chunks=5, interval=0.1, slots=2, engines=("fake",)
)


def measure_requests(amounts: Amounts, folder: Path) -> dict[str, Any]:
    """Predictions one at a time and by many clients, of Cog itself and through the door; the engine does nothing."""
    with cog_server(folder, concurrency=2 * amounts.clients) as cog, door_server(folder, cog, max_active=1024) as door:
        targets = {"cog": of_cog(cog), "door": of_door(door)}
        times = asyncio.run(alternate(targets, _INPUTS, amounts.requests))
        loads = {
            name: _load(asyncio.run(ask_at_once(target, _INPUTS, clients=amounts.clients, seconds=amounts.seconds)))
            for name, target in targets.items()
        }
    requests = {name: _spread(seconds) for name, seconds in times.items()}
    return {
        "requests": {**requests, "overhead_ms": _difference(requests["cog"], requests["door"])},
        "throughput": {"clients": amounts.clients, **loads},
    }


def measure_servers(amounts: Amounts, folder: Path) -> dict[str, Any]:
    """The door in front of one Cog server and of two, whose predictions take time and whose slots are few."""
    loads = {}
    for count in (1, 2):
        with ExitStack() as stack:
            urls = [
                stack.enter_context(slow_server(folder, concurrency=amounts.slots, seconds=amounts.predict_seconds))
                for _ in range(count)
            ]
            door = stack.enter_context(door_server(folder, ",".join(urls), max_active=1024))
            asked = ask_at_once(of_door(door), _INPUTS, clients=amounts.clients, seconds=amounts.seconds)
            loads[str(count)] = _load(asyncio.run(asked)) | {
                "most_per_second": count * amounts.slots / amounts.predict_seconds
            }
    return {
        "servers": {
            "clients": amounts.clients,
            "slots_each": amounts.slots,
            "predict_seconds": amounts.predict_seconds,
            **loads,
        }
    }


def measure_streams(amounts: Amounts, folder: Path) -> dict[str, Any]:
    """The delays of chunks, with one stream and with many, of a stub of Cog itself and through the door."""
    return {"streams": [_streams(amounts, folder, count) for count in (1, amounts.streams)]}


def measure_start(amounts: Amounts, folder: Path) -> dict[str, Any]:
    """Seconds from the call of scripts/serve to a playground that answers, by engine; all is installed and built."""
    seconds = {}
    for engine in amounts.engines:
        start = time.perf_counter()
        with served_playground(folder, engine):
            seconds[engine] = round(time.perf_counter() - start, 1)
    return {"start_seconds": seconds}


def measure_pages(_: Amounts, folder: Path) -> dict[str, Any]:
    """What axe-core finds on the pages, by impact; None without Chromium."""
    with cog_server(folder, concurrency=2) as cog, door_server(folder, cog, max_active=16) as door:
        return {"axe_findings": axe_findings(door)}


def _streams(amounts: Amounts, folder: Path, count: int) -> dict[str, Any]:
    seen: dict[str, Streams] = {}
    with (
        stub_server(folder, num_chunks=amounts.chunks, interval=amounts.interval) as stub,
        door_server(folder, stub, max_active=2 * count + 10) as door,
    ):
        for name, through in (("stub", None), ("door", door)):
            seen[name] = asyncio.run(read_streams(stub, through, count=count, num_chunks=amounts.chunks))
    spreads = {name: _spread(streams.delays) for name, streams in seen.items()}
    return {
        "streams": count,
        "chunks_each": amounts.chunks,
        "chunk_interval_s": amounts.interval,
        "missing_chunks": {name: streams.missing for name, streams in seen.items()},
        "chunk_delay": spreads,
        "stalls_over_1s": {
            name: sum(delay > _STALL_SECONDS for delay in streams.delays) for name, streams in seen.items()
        },
        "overhead_ms": _difference(spreads["stub"], spreads["door"]),
    }


def _load(answers: tuple[float, list[float]]) -> dict[str, Any]:
    rate, seconds = answers
    return {"per_second": round(rate, 1), "latency": _spread(seconds)}


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 3)

    return {"count": len(ordered), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}


def _difference(alone: Mapping[str, float], door: Mapping[str, float]) -> dict[str, float]:
    return {key: round(door[f"{key}_ms"] - alone[f"{key}_ms"], 3) for key in ("p50", "p99")}
