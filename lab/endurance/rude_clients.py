"""Clients that read slowly, stop in the middle of a request, or send the largest inputs, while others ask."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from lab.endurance.client import ClientResult, closed_loop, opened
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage
from lab.endurance.workload import mixed, quantile

_CLIENTS: Final = 4  # others
_HALF_OPEN: Final = 50  # connections at once
_SLOW_READERS: Final = 8
_PAUSE: Final = 1.0  # seconds between two large requests of one kind
_SIZE: Final = 64 * 1024


def rude_clients(stage: Stage, amounts: Amounts) -> Result:
    """Others ask for the same time without and with the rude clients."""
    url = stage.server.url
    questions = [{**one, "max_tokens": 64} for one in mixed(8 if amounts.is_quick else 40, seed=5)]
    asyncio.run(closed_loop(url, questions, clients=_CLIENTS, seconds=0, at_least=len(questions)))  # warm up
    before = asyncio.run(closed_loop(url, questions, clients=_CLIENTS, seconds=amounts.rude_seconds))
    others, rude = asyncio.run(_with_rude(url, questions, amounts))
    usual, loaded = (quantile([one.seconds for one in some], 0.95) for some in (before, others))
    lost = [one for one in (*before, *others) if not one.is_as_expected]
    uncaught = [one for one in rude if one.status == "broken" and not one.error.startswith(("400", "413", "422"))]
    return Result(
        checks=(
            Check("others without an answer", len(lost), 0),
            Check("large requests that were neither answered nor refused", len(uncaught), 0),
            Check("p95 of others, against without", loaded / usual, 1.5, "×", is_time=True),
        ),
        about={
            "others": len(others),
            "large requests": len(rude),
            "p95 of others without, s": round(usual, 3),
            "p95 of others with, s": round(loaded, 3),
            **{f"large requests that ended {status}": n for status, n in Counter(one.status for one in rude).items()},
        },
        losses=tuple(f"{one.status}: {one.error[:300]}" for one in (*lost, *uncaught)[:5]),
    )


async def _with_rude(
    url: str, questions: list[dict[str, Any]], amounts: Amounts
) -> tuple[list[ClientResult], list[ClientResult]]:
    """The answers to others, and to large requests."""
    rude: list[ClientResult] = []
    wide = json.dumps([f"c{number}" for number in range(amounts.wide)])  # one team's columns, so always the same
    silent = [asyncio.create_task(_half_open(url, number)) for number in range(_HALF_OPEN)]
    silent += [asyncio.create_task(_slow_reader(url, number)) for number in range(_SLOW_READERS)]
    async with opened(url) as client:

        async def deep() -> ClientResult:
            body = b'{"input": {"nlq": ' + b"[" * _SIZE + b"]" * _SIZE + b"}}"
            async with client.session.post(
                "/predictions", data=body, headers={"Content-Type": "application/json"}
            ) as response:
                return ClientResult(
                    "refused" if response.status in (400, 413, 422) else "broken", error=str(response.status)
                )

        sends: list[Callable[[], Awaitable[ClientResult]]] = [
            deep,
            lambda: client.ask({"nlq": "a" * _SIZE, "cols": "a"}),
            lambda: client.ask({"nlq": "a", "cols": "b" * (_SIZE - 1)}),
            lambda: client.ask({"nlq": "a", "cols": ",".join(f"{number:063d}" for number in range(1000))}),
            lambda: client.ask({"nlq": f"count where c{len(rude)} exists", "cols": wide, "max_tokens": 64}),
        ]
        large = [asyncio.create_task(_again_and_again(send, rude)) for send in sends]
        seconds = amounts.rude_seconds
        others = await closed_loop(url, questions, clients=_CLIENTS, seconds=seconds, at_least=len(questions))
        for task in (*silent, *large):
            task.cancel()
        await asyncio.gather(*silent, *large, return_exceptions=True)
    return others, rude


async def _again_and_again(send: Callable[[], Awaitable[ClientResult]], answers: list[ClientResult]) -> None:
    while True:
        answers.append(await send())
        await asyncio.sleep(_PAUSE)


async def _half_open(url: str, number: int) -> None:
    """Sends a part of the headers or of the body, and then nothing."""
    head = b"POST /predictions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    parts = (head[:20], head, head + b"Content-Length: 500\r\n\r\n", head + b"Content-Length: 500\r\n\r\n{")
    await _hold(url, parts[number % len(parts)])


async def _slow_reader(url: str, number: int) -> None:
    """Asks for a stream and reads nothing of it."""
    body = json.dumps({"input": {"nlq": f"count {number}", "cols": "a,b"}}).encode()
    head = f"POST /predictions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    await _hold(url, head.encode() + b"Content-Type: application/json\r\nAccept: text/event-stream\r\n\r\n" + body)


async def _hold(url: str, data: bytes) -> None:
    """Send and keep the connection open until the task is cancelled."""
    address = urlsplit(url)
    _, writer = await asyncio.open_connection(address.hostname, address.port, limit=1024)
    try:
        writer.write(data)
        await writer.drain()
        await asyncio.Event().wait()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
