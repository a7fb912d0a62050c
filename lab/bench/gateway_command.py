"""The command line of scripts/dev/bench_gateway: what the gateway costs against Cog's server alone, in milliseconds."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console

from lab.bench.gateway_clients import Streams, alternate, ask_at_once, read_streams
from lab.bench.gateway_servers import (
    PREDICTIONS,
    cog_server,
    gateway_server,
    served_playground,
    slow_server,
    stub_server,
)
from lab.bench.machine import describe_checkout, describe_machine
from lab.endurance.cog_process import ServerFailedError
from pipeline.weights.atomic import write_json
from pipeline.weights.default_weights import ensure_weights

app = typer.Typer(add_completion=False)
_console = Console(stderr=True)
_PACKAGES: Final = ("cog", "fastapi", "starlette", "uvicorn", "httptools", "uvloop", "aiohttp", "aiosqlite")
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
    """Predictions one at a time and by many clients, of Cog itself and through the gateway; the engine does nothing."""
    with (
        cog_server(folder, concurrency=2 * amounts.clients) as cog,
        gateway_server(folder, cog.url, max_active=1024) as gateway,
    ):
        targets = {"cog": f"{cog.url}/predictions", "gateway": f"{gateway}{PREDICTIONS}"}
        times = asyncio.run(alternate(targets, _INPUTS, amounts.requests))
        loads = {
            name: _load(asyncio.run(ask_at_once(target, _INPUTS, clients=amounts.clients, seconds=amounts.seconds)))
            for name, target in targets.items()
        }
    requests = {name: _spread(seconds) for name, seconds in times.items()}
    return {
        "requests": {**requests, "overhead_ms": _difference(requests["cog"], requests["gateway"])},
        "throughput": {"clients": amounts.clients, **loads},
    }


def measure_servers(amounts: Amounts, folder: Path) -> dict[str, Any]:
    """The gateway in front of one Cog server and of two, whose predictions take time and whose slots are few."""
    loads = {}
    for count in (1, 2):
        with ExitStack() as stack:
            slow = partial(slow_server, folder, concurrency=amounts.slots, seconds=amounts.predict_seconds)
            upstreams = ",".join(stack.enter_context(slow(number)).url for number in range(count))
            gateway = stack.enter_context(gateway_server(folder, upstreams, max_active=1024))
            asked = ask_at_once(f"{gateway}{PREDICTIONS}", _INPUTS, clients=amounts.clients, seconds=amounts.seconds)
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
    """The delays of chunks, with one stream and with many, of a stub of Cog itself and through the gateway."""
    return {"streams": [_streams(amounts, folder, count) for count in (1, amounts.streams)]}


def measure_start(amounts: Amounts, folder: Path) -> dict[str, Any]:
    """Seconds from the call of scripts/serve to a playground that answers, by engine; all is installed and built."""
    seconds = {}
    for engine in amounts.engines:
        start = time.perf_counter()
        with served_playground(folder, engine):
            seconds[engine] = round(time.perf_counter() - start, 1)
    return {"start_seconds": seconds}


def _streams(amounts: Amounts, folder: Path, count: int) -> dict[str, Any]:
    seen: dict[str, Streams] = {}
    with (
        stub_server(folder, num_chunks=amounts.chunks, interval=amounts.interval) as stub,
        gateway_server(folder, stub, max_active=2 * count + 10) as gateway,
    ):
        for name, through in (("stub", None), ("gateway", gateway)):
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
        "overhead_ms": _difference(spreads["stub"], spreads["gateway"]),
    }


def _load(answers: tuple[float, list[float]]) -> dict[str, Any]:
    rate, seconds = answers
    return {"per_second": round(rate, 1), "latency": _spread(seconds)}


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    p50, p99, most = (round(1000 * float(found), 3) for found in np.percentile(seconds, (50, 99, 100), method="higher"))
    return {"count": len(seconds), "p50_ms": p50, "p99_ms": p99, "max_ms": most}


def _difference(alone: Mapping[str, float], gateway: Mapping[str, float]) -> dict[str, float]:
    return {key: round(gateway[f"{key}_ms"] - alone[f"{key}_ms"], 3) for key in ("p50", "p99")}


_PARTS: dict[str, Callable[[Amounts, Path], dict[str, Any]]] = {
    "predictions one at a time and by many clients": measure_requests,
    "one Cog server and two": measure_servers,
    "open streams": measure_streams,
    "scripts/serve until the playground answers": measure_start,
}


@app.command()
def bench_gateway(
    json_file: Annotated[Path | None, typer.Option("--json", help="file for the result")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="only check that everything works")] = False,
) -> None:
    """Measure the gateway: its overhead, many clients, two Cog servers, many streams and its start."""
    ensure_weights()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    amounts = QUICK if quick else Amounts()
    about = {
        "command": " ".join(["scripts/dev/bench_gateway", *sys.argv[1:]]),
        **describe_machine(),
        **describe_checkout(),
    }
    about["versions"] |= {name: metadata.version(name) for name in _PACKAGES}
    result: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="gateway") as folder:
            for name, part in _PARTS.items():
                _console.print(name)
                result |= part(amounts, Path(folder))
    except ServerFailedError as error:
        _console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    if json_file is not None:
        write_json(json_file, {**about, **result})
    print(json.dumps(result))
