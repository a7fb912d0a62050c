"""Kills and stops the process of the engine while predictions wait for it; of vLLM, the one that computes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from lab.bench.gateway_servers import PREDICTIONS
from lab.endurance.client import Client, ClientResult, opened
from lab.endurance.cog_process import CogServer
from lab.endurance.observed_predict import OBSERVED
from lab.endurance.own_weights import lock_text, settings
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import OBSERVED_PREDICTOR, SMALL, Stage
from lab.endurance.workload import marked
from lab.processes import family, worker
from pipeline.paths import ROOT
from serving.devices import has_cuda_device

UntilRunning = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]
VllmServer = Callable[[Stage, int], CogServer | str]
_VLLM_SECONDS: Final = 900.0  # until it is ready
_SENT_SECONDS: Final = 0.5
_PYTHON: Final = ROOT / ".venv-vllm" / "bin" / "python"
_UNQUANTIZED: Final = ROOT / "weights" / f"{SMALL}-unquantized"  # scripts/test --vllm makes it
_TITLE: Final = "VLLM::"
_READY_SECONDS: Final = 5.0
_ERROR_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 3.0  # without "ready", after which it is not expected any more
_ENDS: Final = ("succeeded", "failed", "canceled")
_COLUMNS: Final = 60  # of a question, so that its prompt takes several steps


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What was seen after the engine was gone.

    Args:
        ready_seconds: the seconds after which a check still said that the server is ready.
        is_ready: whether the last check said so.
        errors: seconds after which each waiter had an error.
        unanswered: waiters that have neither an error nor an answer, of those that had been answered a part; NaN if
            nobody waited.
        queued: waiters whose prediction the gateway will start again.
    """

    ready_seconds: float
    is_ready: bool
    errors: tuple[float, ...]
    unanswered: float = 0
    queued: int = 0


def engine_death(stage: Stage, amounts: Amounts, server_of_vllm: VllmServer | None = None) -> Result:
    """The worker is killed behind Cog's server, and stopped behind the gateway: Cog has no error for waiters then."""
    with stage.own_server() as server:
        running = partial(_until_running, stage, server)
        killed = asyncio.run(_killed(server, amounts, running, worker))
    checks = _checks("killed", killed)
    about: dict[str, float | str] = {"waiters": amounts.waiters}
    if amounts.is_quick:
        return Result(checks=tuple(checks), about=about)
    with stage.own_server() as server, stage.gateway(server) as gateway:
        stopped = asyncio.run(_stopped(stage, server, gateway.url, amounts))
    checks += _checks("stopped", stopped)
    about["stopped: wait for a server"] = stopped.queued
    vllm = (server_of_vllm or vllm_server)(stage, amounts.waiters)
    if isinstance(vllm, str):
        about["vLLM"] = vllm
    else:
        with vllm as server:
            checks += _checks("vLLM's worker killed", asyncio.run(_killed(server, amounts, _until_sent, _vllm_worker)))
    return Result(checks=tuple(checks), about=about)


def vllm_server(stage: Stage, waiters: int) -> CogServer | str:
    """A server with vLLM, not yet started; or why there is none."""
    if not _PYTHON.exists():
        return "left out: scripts/test --vllm makes its environment"
    # vLLM's CPU build reads AWQ with AVX512 only.
    reads_awq = has_cuda_device() or "avx512" in Path("/proc/cpuinfo").read_text("utf-8")
    weights = stage.weights if reads_awq else _UNQUANTIZED
    if not weights.is_dir():
        return "left out: scripts/test --vllm makes the weights that it needs on this machine"
    stage.close()
    folder = stage.subfolder("vllm")
    lock = folder / "weights.lock"
    lock.write_text(lock_text(weights), "utf-8")
    env = {
        "ENGINE": "vllm",
        **settings(weights, lock),
        OBSERVED: str(folder),
        "MAX_NUM_SEQS": str(waiters),
        "MAX_MODEL_LEN": "1024",
        "DTYPE": "bfloat16",
        "PYTHONPATH": str(ROOT),
    }
    log = folder / "server.log"
    return CogServer(OBSERVED_PREDICTOR, env=env, log=log, setup_seconds=_VLLM_SECONDS, python=_PYTHON)


def _checks(name: str, seen: Aftermath) -> list[Check]:
    return [
        Check(f"{name}: seconds for which a check said ready", seen.ready_seconds, _READY_SECONDS, "s", is_time=True),
        Check(f"{name}: ready at last", int(seen.is_ready), 0),
        Check(f"{name}: waiters without an error", seen.unanswered, 0),
        Check(f"{name}: last waiter's error", max(seen.errors, default=0.0), _ERROR_SECONDS, "s", is_time=True),
    ]


async def _killed(
    server: CogServer, amounts: Amounts, until_running: UntilRunning, find: Callable[[int], psutil.Process]
) -> Aftermath:
    """Kill a process of the server's while waiters stream."""
    ended: list[float] = []
    async with opened(server.url) as client:

        async def wait(number: int) -> ClientResult:
            answer = await client.stream(f"doomed-{number}", marked(number, num_columns=_COLUMNS))
            ended.append(time.monotonic())
            return answer

        async def have_ended() -> bool:
            return all(task.done() for task in tasks)

        tasks = [asyncio.create_task(wait(number)) for number in range(amounts.waiters)]
        await until_running(have_ended)
        find(server.process.pid).kill()
        gone = time.monotonic()
        in_flight = [task for task in tasks if not task.done()]
        says_ready = partial(_says, client, "/health-check", '"READY"')
        ready = asyncio.create_task(_last_ready(says_ready, gone, amounts.watched_seconds))
        await asyncio.wait([ready, *in_flight], timeout=amounts.watched_seconds)
        for task in tasks:
            task.cancel()
        answers = [task.result() for task in in_flight if task.done() and not task.cancelled()]
        seconds, is_ready = await ready
    errors = tuple(at - gone for at in ended if at >= gone)
    unanswered = len(in_flight) - sum(one.status in ("failed", "broken") for one in answers)
    return Aftermath(seconds, is_ready, errors, unanswered if in_flight else float("nan"))


async def _stopped(stage: Stage, server: CogServer, gateway: str, amounts: Amounts) -> Aftermath:
    """Stop the worker; waiters follow their predictions at the gateway."""
    async with opened(gateway) as client:

        async def have_ended() -> bool:
            return all([(await _state(client, name))["status"] in _ENDS for name in created])

        created = await asyncio.gather(*(_create(client, number) for number in range(amounts.waiters)))
        await _until_running(stage, server, have_ended)
        process = worker(server.process.pid)
        process.suspend()
        gone = time.monotonic()
        try:
            says_ready = partial(_says, client, "/ready", '"ready"')
            ready = asyncio.create_task(_last_ready(says_ready, gone, amounts.watched_seconds))
            errors: dict[str, float] = {}
            while time.monotonic() < gone + amounts.watched_seconds and len(errors) < len(created):
                states = {name: await _state(client, name) for name in created}
                failed = [name for name, state in states.items() if state["status"] == "failed"]
                errors |= {name: time.monotonic() - gone for name in failed if name not in errors}
                await asyncio.sleep(0.2)
            waiting = [state for state in states.values() if state["status"] in ("starting", "processing")]
            begun = [state for state in waiting if state["output"]]
            unanswered = len(begun) if waiting or errors else float("nan")
            return Aftermath(*await ready, tuple(errors.values()), unanswered, len(waiting) - len(begun))
        finally:
            process.resume()


async def _until_running(stage: Stage, server: CogServer, have_ended: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the engine has begun with some of the predictions, or all have ended."""
    while not (await asyncio.to_thread(stage.stats, server))["num_running"] and not await have_ended():
        await asyncio.sleep(0.02)


async def _until_sent(have_ended: Callable[[], Awaitable[bool]]) -> None:
    """Wait until vLLM has the predictions; it does not count those that run."""
    await asyncio.sleep(_SENT_SECONDS)


def _vllm_worker(pid: int) -> psutil.Process:
    """The process that computes. With one device, vLLM has no worker beside its engine core."""
    titles = {" ".join(one.cmdline()): one for one in family(pid)}
    ours = {title: one for title, one in titles.items() if _TITLE in title}
    return next((one for title, one in ours.items() if "Worker" in title), next(iter(ours.values())))


async def _last_ready(says_ready: Callable[[], Awaitable[bool]], gone: float, watched: float) -> tuple[float, bool]:
    """The number of seconds for which a check still said that the server is ready, and whether the last one did.

    No answer is not ready.
    """
    last, is_ready = 0.0, True
    while (since := time.monotonic() - gone) < min(watched, last + _QUIET_SECONDS):
        is_ready = await says_ready()
        last = since if is_ready else last
        await asyncio.sleep(0.1)
    return last, is_ready


async def _says(client: Client, path: str, word: str) -> bool:
    try:
        async with client.session.get(path, timeout=aiohttp.ClientTimeout(total=1)) as response:
            return word in await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _create(client: Client, number: int) -> str:
    """Start a prediction at the gateway; its id."""
    body = {"input": marked(number, num_columns=_COLUMNS)}
    async with client.session.post(PREDICTIONS, json=body, headers={"Prefer": "respond-async"}) as response:
        return str((await response.json())["id"])


async def _state(client: Client, prediction_id: str) -> dict[str, Any]:
    async with client.session.get(f"/v1/predictions/{prediction_id}") as response:
        return dict(await response.json())
