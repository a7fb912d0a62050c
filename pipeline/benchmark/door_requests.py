"""Measures whole predictions: Cog alone and through the door, one at a time and by many clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from pipeline.benchmark.door_servers import MODEL


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
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        for number in range(count + 10):
            for name, target in targets.items():
                start = time.perf_counter()
                await _predict(client, target, inputs)
                if number >= 10:  # the first ones open connections and fill caches
                    times[name].append(time.perf_counter() - start)
    return times


async def throughput(target: Target, inputs: Mapping[str, Any], *, clients: int, seconds: float) -> float:
    """Predictions a second when so many clients each ask again as soon as they are answered."""
    done = 0
    end = time.perf_counter() + seconds

    async def ask() -> None:
        nonlocal done
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            while time.perf_counter() < end:
                await _predict(client, target, inputs)
                done += 1

    start = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(clients)))
    return done / (time.perf_counter() - start)


async def _predict(client: httpx.AsyncClient, target: Target, inputs: Mapping[str, Any]) -> None:
    response = await client.post(target.url, json={"input": inputs}, headers=dict(target.headers))
    content = response.json()
    assert response.status_code == target.status, content
    assert content["status"] == "succeeded", content
