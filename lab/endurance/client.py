"""Asks a Cog server as its users do: whole answers, streams, clients that cancel or disconnect, and many at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import aiohttp

Item = TypeVar("Item")
Out = TypeVar("Out")
_LONGEST_LINE = 4 << 20  # bytes of an event
_TRIES = 20  # of a prediction that is refused although slots may be free; see CogServer.stream
_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ClientResult:
    """How one prediction ended for its client.

    Args:
        status: succeeded, failed or canceled, as Cog says; refused (409), invalid (422), left (the client has
            disconnected), or broken (no whole answer came).
        text: the output that was received.
        error: why there is no more.
        seconds: from the request to its end.
        metrics: as Cog says.
    """

    status: str
    text: str = ""
    error: str = ""
    seconds: float = 0.0
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_as_expected(self) -> bool:
        """Whether it succeeded, or only max_tokens cut it short."""
        return self.status == "succeeded" or (
            self.status == "failed" and "max_tokens: the answer was not complete" in self.error
        )


@dataclass(frozen=True, slots=True)
class End:
    """The moment and the way in which a client ends its prediction early.

    Args:
        after: the event after which it does.
        by: asking the server to cancel, or disconnecting.
        delay: seconds after that event.
    """

    after: Literal["start", "output"]
    by: Literal["cancel", "disconnect"]
    delay: float = 0.0


class Client:
    """Connections to one server, from `opened`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def ask(self, inputs: Mapping[str, Any]) -> ClientResult:
        """One prediction, not streamed, sent once."""
        began = time.perf_counter()
        try:
            async with self.session.post("/predictions", json={"input": inputs}) as response:
                body = await response.json(content_type=None)
                return _answer(response.status, body, time.perf_counter() - began)
        except (aiohttp.ClientError, ValueError, OSError) as error:
            return ClientResult("broken", error=repr(error), seconds=time.perf_counter() - began)

    async def ask_patiently(self, inputs: Mapping[str, Any]) -> ClientResult:
        """One prediction, sent again while the server is full."""
        return await _until_taken(lambda: self.ask(inputs))

    async def stream(self, prediction_id: str, inputs: Mapping[str, Any], end: End | None = None) -> ClientResult:
        """One prediction, streamed, which the client may end early; sent again while the server is full."""
        return await _until_taken(lambda: self._stream(prediction_id, inputs, end))

    async def _stream(self, prediction_id: str, inputs: Mapping[str, Any], end: End | None) -> ClientResult:
        began, text = time.perf_counter(), ""
        body, headers = {"id": prediction_id, "input": inputs}, {"Accept": "text/event-stream"}
        try:
            async with self.session.put(f"/predictions/{prediction_id}", json=body, headers=headers) as response:
                if response.status != 200:
                    return _answer(response.status, await response.json(content_type=None), 0.0)
                async for name, data in _events(response):
                    text += data["chunk"] if name == "output" else ""
                    if name == "completed":
                        seconds = time.perf_counter() - began
                        return ClientResult(
                            data["status"], text, data.get("error") or "", seconds, data.get("metrics") or {}
                        )
                    if end is not None and name == end.after:
                        await asyncio.sleep(end.delay)
                        if end.by == "disconnect":
                            response.close()
                            return ClientResult("left", text)
                        await self.cancel(prediction_id)
                        end = None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            return ClientResult("broken", text, repr(error), time.perf_counter() - began)
        return ClientResult("broken", text, "the stream ended before the prediction", time.perf_counter() - began)

    async def cancel(self, prediction_id: str) -> None:
        """Ask the server to cancel a prediction, which may have ended."""
        async with self.session.post(f"/predictions/{prediction_id}/cancel") as response:
            await response.read()


async def _until_taken(send: Callable[[], Awaitable[ClientResult]]) -> ClientResult:
    for _ in range(_TRIES):
        answer = await send()
        if answer.status != "refused":
            break
        await asyncio.sleep(_RETRY_SECONDS)
    return answer


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Client]:
    """A client with as many connections as it needs."""
    async with aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=300),
        read_bufsize=_LONGEST_LINE,
        trust_env=False,
    ) as session:
        yield Client(session)


async def at_most(count: int, items: Sequence[Item], ask: Callable[[Item], Awaitable[Out]]) -> list[Out]:
    """Call `ask` with each item, with so many calls at a time; the results in the order of the items."""
    slots = asyncio.Semaphore(count)

    async def one(item: Item) -> Out:
        async with slots:
            return await ask(item)

    return list(await asyncio.gather(*(one(item) for item in items)))


async def ask_all(url: str, questions: Sequence[Mapping[str, Any]], *, at_once: int = 1) -> list[ClientResult]:
    """The answers to questions in their order, so many of them asked at a time."""
    async with opened(url) as client:
        return await at_most(at_once, questions, client.ask_patiently)


async def closed_loop(
    url: str, questions: Sequence[Mapping[str, Any]], *, clients: int, seconds: float, at_least: int = 1
) -> list[ClientResult]:
    """So many clients, each of which asks its next question when it has its answer, after the last one the first again.

    They ask for so many seconds and, however long that takes, `at_least` so many questions.
    """
    end, turn = time.monotonic() + seconds, itertools.count()
    answers: list[ClientResult] = []

    async def one(client: Client) -> None:
        while (number := next(turn)) < at_least or time.monotonic() < end:
            answers.append(await client.ask_patiently(questions[number % len(questions)]))

    async with opened(url) as client:
        await asyncio.gather(*(one(client) for _ in range(clients)))
    return answers


async def open_loop(
    url: str, questions: Sequence[Mapping[str, Any]], *, rate: float, seconds: float
) -> list[ClientResult]:
    """Poisson arrivals, `rate` a second, each asked once; after so many seconds the last answers are awaited."""
    rng, now, tasks = random.Random(0), 0.0, []
    async with opened(url) as client:
        began = time.monotonic()
        for number in itertools.count():
            now += rng.expovariate(rate)
            if now > seconds:
                break
            await asyncio.sleep(began + now - time.monotonic())
            tasks.append(asyncio.create_task(client.ask(questions[number % len(questions)])))
        return list(await asyncio.gather(*tasks))


def _answer(status: int, body: Any, seconds: float) -> ClientResult:
    if status == 409:
        return ClientResult("refused", error="409", seconds=seconds)
    if status == 422:
        return ClientResult("invalid", error=json.dumps(body), seconds=seconds)
    if status != 200 or not isinstance(body, dict):
        return ClientResult("broken", error=f"{status} {str(body)[:300]}", seconds=seconds)
    text = "".join(body.get("output") or [])
    return ClientResult(body["status"], text, body.get("error") or "", seconds, body.get("metrics") or {})


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    name = ""
    async for line in response.content:
        if line.startswith(b"event:"):
            name = line.removeprefix(b"event:").strip().decode()
        elif line.startswith(b"data:"):
            yield name, json.loads(line.removeprefix(b"data:"))
