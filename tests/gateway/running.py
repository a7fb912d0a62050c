"""A gateway in this process without its application, and predictions on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable

from gateway.gateway import Gateway, open_gateway
from gateway.predictions.live_prediction import LivePrediction, OutputPiece
from gateway.predictions.prediction import Prediction, new_id, now
from gateway.settings import GatewaySettings
from tests.gateway.fake_cog import FakeCog


@asynccontextmanager
async def gateway_to(*servers: FakeCog, **settings: object) -> AsyncIterator[Gateway]:
    own = {"upstreams": tuple(server.url for server in servers), "keep": False, "drain_seconds": 0, **settings}
    async with open_gateway(GatewaySettings(**own)) as gateway:
        await gateway.model.read()  # as each API does before it starts a prediction
        yield gateway


def prediction(text: str = "hello") -> Prediction:
    return Prediction(new_id(), "local/model", "0" * 64, {"text": text}, now())


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(60):
        while not (await found if isawaitable(found := condition()) else found):
            await asyncio.sleep(0.01)


async def first_piece(run: LivePrediction) -> OutputPiece:
    async with asyncio.timeout(60):
        return await anext(event async for event in run.follow() if isinstance(event, OutputPiece))


async def run(gateway: Gateway) -> Prediction:
    return await (await gateway.runner.start(prediction())).finished()


async def started(gateway: Gateway) -> LivePrediction:
    """A prediction that has written its first piece."""
    one = await gateway.runner.start(prediction())
    await first_piece(one)
    return one
