"""Kills and stops the process of the engine while predictions wait for it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import psutil

from pipeline.benchmark.door_servers import MODEL, door_server
from pipeline.endurance.client import Answer, Client, opened
from pipeline.endurance.cog_process import CogServer
from pipeline.endurance.processes import worker
from pipeline.endurance.row import Amounts, Check, Result
from pipeline.endurance.stage import Stage
from pipeline.endurance.vllm_death import vllm_checks
from pipeline.endurance.workload import marked

_READY_SECONDS: Final = 5.0
_ERROR_SECONDS: Final = 10.0
_WATCHED_SECONDS: Final = 12.0  # after the engine is gone
_QUIET_SECONDS: Final = 3.0  # without "ready", after which it is not expected any more
_COLUMNS: Final = 60  # of a question, so that its prompt takes several steps


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What was seen after the engine was gone.

    Args:
        ready_seconds: after which a check still said that the server is ready.
        errors: seconds after which each waiter had an error.
        unanswered: waiters that have neither an error nor an answer, of those that had been answered a part.
        queued: waiters whose prediction the door will start again.
    """

    ready_seconds: float
    errors: tuple[float, ...]
    unanswered: int = 0
    queued: int = 0


def engine_death(stage: Stage, amounts: Amounts) -> Result:
    """The worker is killed behind Cog's server, and stopped behind the door: Cog has no error for waiters then."""
    with stage.own_server() as server:
        killed = asyncio.run(_killed(stage, server, amounts.waiters))
    checks = _checks("killed", killed)
    about: dict[str, float | str] = {"waiters": amounts.waiters}
    if amounts.is_quick:
        return Result(checks=tuple(checks), about=about)
    stage.progress(0.3)
    with stage.own_server() as server, door_server(stage.subfolder("door"), server.url, max_active=1000) as door:
        stopped = asyncio.run(_stopped(stage, server, door, amounts.waiters))
    checks += _checks("stopped", stopped)
    about["stopped: wait for a server"] = stopped.queued
    stage.progress(0.6)
    vllm = vllm_checks(stage, amounts.waiters)
    if isinstance(vllm, str):
        about["vLLM"] = vllm
    else:
        checks += vllm
    return Result(checks=tuple(checks), about=about)


def _checks(name: str, seen: Aftermath) -> list[Check]:
    return [
        Check(f"{name}: seconds for which a check said ready", seen.ready_seconds, _READY_SECONDS, "s", is_time=True),
        Check(f"{name}: waiters without an error", seen.unanswered, 0),
        Check(f"{name}: last waiter's error", max(seen.errors, default=0.0), _ERROR_SECONDS, "s", is_time=True),
    ]


async def _killed(stage: Stage, server: CogServer, waiters: int) -> Aftermath:
    """Kill the worker while waiters stream."""
    ended: list[float] = []
    async with opened(server.url) as client:

        async def wait(number: int) -> Answer:
            answer = await client.stream(f"doomed-{number}", marked(number, num_columns=_COLUMNS))
            ended.append(time.monotonic())
            return answer

        tasks = [asyncio.create_task(wait(number)) for number in range(waiters)]
        await _until_running(stage, server)
        gone = _signal(server, signal.SIGKILL)
        in_flight = [task for task in tasks if not task.done()]
        ready = asyncio.create_task(_last_ready(lambda: _says(client, "/health-check", '"READY"'), gone))
        await asyncio.wait(in_flight, timeout=_WATCHED_SECONDS)
        for task in tasks:
            task.cancel()
        answers = [task.result() for task in in_flight if task.done() and not task.cancelled()]
        seconds = await ready
    errors = tuple(at - gone for at in ended if at >= gone)
    return Aftermath(seconds, errors, len(in_flight) - sum(one.status in ("failed", "broken") for one in answers))


async def _stopped(stage: Stage, server: CogServer, door: str, waiters: int) -> Aftermath:
    """Stop the worker; waiters follow their predictions at the door."""
    async with opened(door) as client, opened(server.url):
        created = await asyncio.gather(*(_create(client, number) for number in range(waiters)))
        await _until_running(stage, server)
        gone = _signal(server, signal.SIGSTOP)
        try:
            ready = asyncio.create_task(_last_ready(lambda: _says(client, "/ready", '"ready"'), gone))
            errors: dict[str, float] = {}
            while time.monotonic() < gone + _WATCHED_SECONDS and len(errors) < len(created):
                states = {name: await _state(client, name) for name in created}
                failed = [name for name, state in states.items() if state["status"] == "failed"]
                errors |= {name: time.monotonic() - gone for name in failed if name not in errors}
                await asyncio.sleep(0.2)
            waiting = [state for state in states.values() if state["status"] in ("starting", "processing")]
            unanswered = [state for state in waiting if state["output"]]
            return Aftermath(await ready, tuple(errors.values()), len(unanswered), len(waiting) - len(unanswered))
        finally:
            _signal(server, signal.SIGCONT)


def _signal(server: CogServer, number: signal.Signals) -> float:
    """Send it to the worker; when that was."""
    process: psutil.Process = worker(server.process.pid)
    process.send_signal(number)
    return time.monotonic()


async def _until_running(stage: Stage, server: CogServer) -> None:
    """Until the engine has begun with some of the predictions."""
    while not (await asyncio.to_thread(stage.stats, server))["num_running"]:
        await asyncio.sleep(0.02)


async def _last_ready(is_ready: Callable[[], Awaitable[bool]], gone: float) -> float:
    """For how many seconds a check still said that the server is ready. No answer is not ready."""
    last = 0.0
    while (since := time.monotonic() - gone) < min(_WATCHED_SECONDS, last + _QUIET_SECONDS):
        last = since if await is_ready() else last
        await asyncio.sleep(0.1)
    return last


async def _says(client: Client, path: str, word: str) -> bool:
    try:
        async with client.session.get(path, timeout=aiohttp.ClientTimeout(total=1)) as response:
            return word in await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _create(client: Client, number: int) -> str:
    """Start a prediction at the door; its id."""
    body = {"input": marked(number, num_columns=_COLUMNS)}
    async with client.session.post(
        f"/v1/models/{MODEL}/predictions", json=body, headers={"Prefer": "respond-async"}
    ) as response:
        return str((await response.json())["id"])


async def _state(client: Client, prediction_id: str) -> dict[str, Any]:
    async with client.session.get(f"/v1/predictions/{prediction_id}") as response:
        return dict(await response.json())
