"""Ends the server by SIGTERM and SIGKILL while predictions are in flight, and starts it again."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from lab.endurance.client import ClientResult, ask_all, opened
from lab.endurance.cog_process import CogServer
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage
from lab.endurance.workload import marked
from lab.processes import family, left_after
from serving.weights import verify

_DRAIN_SECONDS: Final = 30.0
_READY_SECONDS: Final = 60.0  # from SIGKILL to ready again
_NEW: Final = 3  # predictions after SIGTERM, for which there are slots
_COLUMNS: Final = 20
_FEW: Final = tuple(map(marked, range(4)))  # whose answers are compared


def restarts(stage: Stage, amounts: Amounts) -> Result:
    """Send SIGTERM, then SIGKILL while predictions run, then while the server starts; then start it as usual."""
    with stage.own_server(concurrency=amounts.waiters + _NEW) as server:
        expected = asyncio.run(ask_all(server.url, _FEW, at_once=2))
        drained, accepted, seconds, code = asyncio.run(_terminated(stage, server, amounts.waiters))
    before = _partial_files(stage)
    with stage.own_server() as server:
        began = asyncio.run(_killed(stage, server, amounts.waiters))
        left = len(left_after(began, amounts.watched_seconds))
    for number in range(0 if amounts.is_quick else 4):
        left += _killed_at_start(stage, random.Random(number).random() * 2, amounts.watched_seconds)
    began_at = time.monotonic()
    url = stage.server.url
    ready = time.monotonic() - began_at
    again = asyncio.run(ask_all(url, _FEW, at_once=2))
    verify(stage.weights, Path(stage.settings["WEIGHTS_LOCK"]))
    lost = [one for one in drained if one.status != "succeeded"]
    changed = sum(one.text != other.text for one, other in zip(expected, again, strict=True))
    return Result(
        checks=(
            Check("SIGTERM: predictions in flight that were lost", len(lost), 0),
            Check("SIGTERM: new predictions that were accepted", accepted, 0),
            Check("SIGTERM: until the end", seconds, _DRAIN_SECONDS, "s", is_time=True),
            Check("SIGTERM: exit code", abs(code), 0),
            Check("SIGKILL: processes left", left, 0),
            Check("SIGKILL: half-written files", len(_partial_files(stage) - before), 0),
            Check("SIGKILL: a start afterwards", ready, _READY_SECONDS, "s", is_time=True),
            Check("SIGKILL: answers that changed", changed, 0),
        ),
        about={"in flight": amounts.waiters},
        losses=tuple(f"{one.status}: {one.error}" for one in lost[:5]),
    )


async def _terminated(stage: Stage, server: CogServer, count: int) -> tuple[list[ClientResult], int, float, int]:
    """The answers, new predictions that were accepted, seconds until the end, and the exit code."""
    async with opened(server.url) as client:
        tasks = await _in_flight(stage, server, client.stream, count)
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        await asyncio.sleep(0.2)  # the signal is handled
        async with opened(server.url) as stranger:
            new = [await stranger.ask(marked(1000 + number)) for number in range(_NEW)]
        answers = list(await asyncio.gather(*tasks))
        try:
            code = await asyncio.to_thread(server.process.wait, _DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
    accepted = sum(one.status in ("succeeded", "failed") for one in new)
    return answers, accepted, time.monotonic() - began, code


async def _killed(stage: Stage, server: CogServer, count: int) -> list[Any]:
    """Kill the server, but not its worker, with predictions in flight; the processes that it had."""
    async with opened(server.url) as client:
        tasks = await _in_flight(stage, server, client.stream, count)
        processes = family(server.process.pid)
        server.process.kill()
        await asyncio.gather(*tasks)
        await asyncio.to_thread(server.process.wait)
    return processes


async def _in_flight(stage: Stage, server: CogServer, stream: Any, count: int) -> list[asyncio.Task[ClientResult]]:
    """Start so many predictions; returns when the server has them."""
    before = (await asyncio.to_thread(stage.stats, server))["num_requests"]
    tasks = [
        asyncio.create_task(stream(f"flight-{count}-{number}", marked(number, num_columns=_COLUMNS)))
        for number in range(count)
    ]
    while (await asyncio.to_thread(stage.stats, server))["num_requests"] - before < count:
        if all(task.done() for task in tasks):
            break
        await asyncio.sleep(0.02)
    return tasks


def _killed_at_start(stage: Stage, seconds: float, watched: float) -> int:
    """Start a server and kill it so soon; how many of its processes are left."""
    server = stage.unready_server()
    time.sleep(seconds)
    processes = family(server.pid)
    server.kill()
    server.wait()
    return len(left_after(processes, watched))


def _partial_files(stage: Stage) -> set[Path]:
    """Files that a server has not written to their end."""
    found = [path for folder in stage.written for path in folder.rglob("*") if path.is_file()]
    return {path for path in found if ".partial" in path.name or path.stat().st_size == 0}
