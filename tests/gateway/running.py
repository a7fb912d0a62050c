"""A door in this process without its application, and predictions on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable

from gateway.door import Door, open_door
from gateway.predictions import Prediction, new_id, now
from gateway.runs import OutputPiece, Run
from gateway.settings import DoorSettings
from tests.gateway.fake_cog import FakeCog


@asynccontextmanager
async def door_to(*servers: FakeCog, **settings: object) -> AsyncIterator[Door]:
    own = {"upstreams": tuple(server.url for server in servers), "keep": False, "drain_seconds": 0, **settings}
    async with open_door(DoorSettings(**own)) as door:
        await door.model.read()  # as each API does before it starts a prediction
        yield door


def prediction(text: str = "hello") -> Prediction:
    return Prediction(new_id(), "local/model", "0" * 64, {"text": text}, now())


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until it is true."""
    async with asyncio.timeout(60):
        while not (await found if isawaitable(found := condition()) else found):
            await asyncio.sleep(0.01)


async def first_piece(run: Run) -> OutputPiece:
    async with asyncio.timeout(60):
        return await anext(event async for event in run.follow() if isinstance(event, OutputPiece))


async def run(door: Door) -> Prediction:
    return await (await door.runner.start(prediction())).finished()


async def started(door: Door) -> Run:
    """A prediction that has written its first piece."""
    one = await door.runner.start(prediction())
    await first_piece(one)
    return one
