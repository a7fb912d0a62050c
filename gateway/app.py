"""Puts the gateway's APIs together into one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import Depends, FastAPI

from gateway.cog_api import COG
from gateway.corrections.routes import CORRECTIONS
from gateway.gateway import open_gateway
from gateway.http.api import Api, include
from gateway.http.request_log import PredictionLog, RequestLog
from gateway.http.security import SecurityHeaders, allow_origins, check_sender
from gateway.keys.login_page import LOGIN
from gateway.mcp.routes import MCP
from gateway.metrics.measuring import METRICS
from gateway.openai.responses.routes import RESPONSES
from gateway.openai.routes import OPENAI
from gateway.openai.unserved import UNSERVED
from gateway.pages.routes import PAGES
from gateway.probes import PROBES
from gateway.replicate.routes import REPLICATE
from gateway.settings import GatewaySettings
from gateway.shadow.routes import SHADOW
from gateway.tracing import open_tracing
from gateway.upstream.model_server import ModelServer

# A new API is one line here. The first one's errors are for paths that belong to none.
APIS: tuple[Api, ...] = (
    REPLICATE,
    CORRECTIONS,
    OPENAI,
    RESPONSES,
    UNSERVED,
    MCP,
    COG,
    PROBES,
    PAGES,
    SHADOW,
    METRICS,
    LOGIN,
)


def create_app(settings: GatewaySettings, servers: Callable[[], Sequence[ModelServer]] | None = None) -> FastAPI:
    """The application; the gateway opens when the server starts it and closes when that stops. See `open_gateway`."""

    tracing = open_tracing()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_gateway(settings, servers) as gateway, AsyncExitStack() as stack:
            if tracing is not None:
                stack.push_async_callback(tracing.close)
                gateway.runner.on_start.append(tracing.follow)
            for api in APIS:
                if api.open is not None:
                    await stack.enter_async_context(api.open(gateway))
            gateway.runner.on_start.append(PredictionLog(with_inputs=settings.log_inputs))
            app.state.gateway = gateway
            yield
            await gateway.runner.close(settings.drain_seconds)  # before what runs beside the routes ends

    app = FastAPI(
        title="gateway",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(check_sender)],
    )
    include(app, APIS)
    allow_origins(app, settings)
    for middleware in (SecurityHeaders, RequestLog):  # the last one is the outermost
        app.add_middleware(middleware)
    if tracing is not None:
        tracing.trace_requests(app)
    return app
