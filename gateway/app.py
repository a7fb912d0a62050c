"""The door's ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import Depends, FastAPI

from gateway.api import Api, include
from gateway.cog_api import COG
from gateway.door import open_door
from gateway.keys.login_page import LOGIN
from gateway.metrics import METRICS
from gateway.metrics.request_counter import RequestCounter
from gateway.model_server import ModelServer
from gateway.openai import OPENAI
from gateway.pages import PAGES
from gateway.probes import PROBES
from gateway.replicate import REPLICATE
from gateway.request_log import PredictionLog, RequestLog
from gateway.security import SecurityHeaders, allow_origins, check_sender
from gateway.settings import DoorSettings
from gateway.tracing import open_tracing

# A new API is one line here. The first one's errors are for paths that belong to none.
APIS: tuple[Api, ...] = (
    REPLICATE,
    OPENAI,
    COG,
    PROBES,
    PAGES,
    METRICS,
    LOGIN,
)


def create_app(settings: DoorSettings, servers: Callable[[], Sequence[ModelServer]] | None = None) -> FastAPI:
    """The application; the door opens when the server starts it and closes when that stops.

    Args:
        settings: of this process.
        servers: see `open_door`.
    """

    tracing = open_tracing()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_door(settings, servers) as door, AsyncExitStack() as stack:
            if tracing is not None:
                stack.push_async_callback(tracing.close)
                door.runner.on_start.append(tracing.follow)
            for api in APIS:
                if api.open is not None:
                    await stack.enter_async_context(api.open(door))
            door.runner.on_start.append(PredictionLog(with_inputs=settings.log_inputs))
            app.state.door = door
            yield
            await door.runner.close(settings.drain_seconds)  # before what runs beside the routes ends

    app = FastAPI(
        title="door",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(check_sender)],
    )
    include(app, APIS)
    allow_origins(app, settings)
    for middleware in (SecurityHeaders, RequestCounter, RequestLog):  # the last one is the outermost
        app.add_middleware(middleware)
    if tracing is not None:
        tracing.trace_requests(app)
    return app
