"""Loads a server for a while: by clients that wait for their answers, or at a rate whatever it answers."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lab.endurance.client import Answer, Client, opened


async def closed_loop(
    url: str, questions: Sequence[Mapping[str, Any]], *, clients: int, seconds: float, at_least: int = 1
) -> list[Answer]:
    """So many clients, each of which asks its next question when it has its answer.

    Args:
        url: of the server.
        questions: asked in turn, again from the first after the last.
        clients: how many.
        seconds: after which no question is asked any more.
        at_least: questions that are asked however long they take.
    """
    end, turn = time.monotonic() + seconds, itertools.count()
    answers: list[Answer] = []

    async def one(client: Client) -> None:
        while (number := next(turn)) < at_least or time.monotonic() < end:
            answers.append(await client.ask_patiently(questions[number % len(questions)]))

    async with opened(url) as client:
        await asyncio.gather(*(one(client) for _ in range(clients)))
    return answers


async def open_loop(
    url: str, questions: Sequence[Mapping[str, Any]], *, rate: float, seconds: float, seed: int = 0
) -> list[Answer]:
    """Poisson arrivals, each asked once.

    Args:
        url: of the server.
        questions: asked in turn.
        rate: arrivals a second.
        seconds: of arrivals; then the last answers are awaited.
        seed: of the arrival times.
    """
    rng, now, tasks = random.Random(seed), 0.0, []
    async with opened(url) as client:
        began = time.monotonic()
        for number in itertools.count():
            now += rng.expovariate(rate)
            if now > seconds:
                break
            await asyncio.sleep(began + now - time.monotonic())
            tasks.append(asyncio.create_task(client.ask(questions[number % len(questions)])))
        return list(await asyncio.gather(*tasks))
