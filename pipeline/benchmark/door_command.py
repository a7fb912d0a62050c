"""The command line of scripts/bench_door: what the door costs, against Cog's server alone."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pipeline.benchmark.door_requests import alternate, of_cog, of_door, throughput
from pipeline.benchmark.door_servers import ServerFailedError, cog_server, door_server, stub_server
from pipeline.benchmark.door_streams import Streams, read_streams
from pipeline.benchmark.machine import describe_checkout, describe_machine
from pipeline.weights.default_weights import ensure_weights

app = typer.Typer(add_completion=False)
_console = Console(stderr=True)
_INPUTS = {"nlq": "slowest traces", "cols": '["name", "duration_ms"]'}
_PACKAGES = ("cog", "fastapi", "starlette", "uvicorn", "httptools", "uvloop", "httpx", "aiosqlite")


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much is measured."""

    requests: int = 1000
    clients: int = 64
    seconds: float = 15.0
    streams: int = 1000
    chunks: int = 20
    interval: float = 1.0  # seconds between two chunks of one stream


_QUICK = Amounts(requests=20, clients=8, seconds=1.0, streams=50, chunks=5, interval=0.1)


@app.command()
def bench_door(
    json_file: Annotated[Path | None, typer.Option("--json", help="file for the result")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="only check that everything works")] = False,
) -> None:
    """Measure the door's overhead: per prediction, per streamed chunk, at many clients, with many open streams."""
    ensure_weights()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    amounts = _QUICK if quick else Amounts()
    about = {"command": " ".join(["scripts/bench_door", *sys.argv[1:]]), **describe_machine(), **describe_checkout()}
    about["versions"] |= {name: metadata.version(name) for name in _PACKAGES}
    try:
        with tempfile.TemporaryDirectory(prefix="door") as folder:
            result = {**about, **measure(amounts, Path(folder))}
    except ServerFailedError as error:
        _console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({key: result[key] for key in ("requests", "throughput", "streams")}))


def measure(amounts: Amounts, folder: Path) -> dict[str, Any]:
    """All figures; times in milliseconds."""
    with cog_server(folder, concurrency=2 * amounts.clients) as cog, door_server(folder, cog, max_active=1024) as door:
        targets = {"cog": of_cog(cog), "door": of_door(door)}
        _console.print(f"{amounts.requests} predictions one at a time, Cog and door in turn")
        times = asyncio.run(alternate(targets, _INPUTS, amounts.requests))
        _console.print(f"{amounts.clients} clients")
        rates = {
            name: asyncio.run(throughput(target, _INPUTS, clients=amounts.clients, seconds=amounts.seconds))
            for name, target in targets.items()
        }
    requests = {name: _spread(seconds) for name, seconds in times.items()}
    return {
        "engine": "fake",
        "requests": {**requests, "overhead_ms": _difference(requests["cog"], requests["door"])},
        "throughput": {
            "clients": amounts.clients,
            "seconds": amounts.seconds,
            **{f"{name}_per_second": round(rate, 1) for name, rate in rates.items()},
        },
        "streams": [_streams(amounts, folder, count) for count in (1, amounts.streams)],
    }


def _streams(amounts: Amounts, folder: Path, count: int) -> dict[str, Any]:
    """Chunks of so many streams, of the stub itself and through a door."""
    _console.print(f"{count} open streams")
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
        "overhead_ms": _difference(spreads["stub"], spreads["door"]),
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 3)

    return {"count": len(ordered), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}


def _difference(alone: dict[str, float], door: dict[str, float]) -> dict[str, float]:
    return {key: round(door[f"{key}_ms"] - alone[f"{key}_ms"], 3) for key in ("p50", "p99")}
