"""Measures whole predictions: Cog alone and through the door, one at a time and by many clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from lab.bench.door_servers import MODEL

_ASK_AGAIN = 0.002  # seconds after Cog has refused a prediction


@dataclass(frozen=True, slots=True)
class Target:
    """Where a prediction is asked for.

    Args:
        url: the address of the POST.
        headers: so that the answer comes when the prediction has ended.
        status: of the answer.
    """

    url: str
    headers: Mapping[str, str]
    status: int


def of_cog(url: str) -> Target:
    """Cog's server itself."""
    return Target(f"{url}/predictions", {}, 200)


def of_door(url: str) -> Target:
    """The same through the door."""
    return Target(f"{url}/v1/models/{MODEL}/predictions", {"Prefer": "wait"}, 201)


async def alternate(targets: Mapping[str, Target], inputs: Mapping[str, Any], count: int) -> dict[str, list[float]]:
    """Seconds of predictions, one at a time, in turn at each target, so that noise falls on all alike."""
    times: dict[str, list[float]] = {name: [] for name in targets}
    async with _session() as session:
        for number in range(count + 10):
            for name, target in targets.items():
                seconds = await _predict(session, target, inputs)
                if number >= 10:  # the first ones open connections and fill caches
                    times[name].append(seconds)
    return times


async def ask_at_once(
    target: Target, inputs: Mapping[str, Any], *, clients: int, seconds: float
) -> tuple[float, list[float]]:
    """Many clients, each of which asks again as soon as it is answered.

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


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60))


async def _predict(session: aiohttp.ClientSession, target: Target, inputs: Mapping[str, Any]) -> float:
    """The seconds of one prediction.

    Cog sometimes refuses one although slots are free (`docs/log.md`); then it is asked again, in the measured time.
    """
    start = time.perf_counter()
    while True:
        async with session.post(target.url, json={"input": inputs}, headers=target.headers) as response:
            content = await response.json()
        if response.status != HTTPStatus.CONFLICT:
            break
        await asyncio.sleep(_ASK_AGAIN)
    assert response.status == target.status, content
    assert content["status"] == "succeeded", content
    return time.perf_counter() - start
