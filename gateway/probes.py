"""Tells whether the gateway lives (`/health`), and whether it can answer predictions (`/ready`)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from gateway.errors import GatewayError
from gateway.gateway import WholeGateway
from gateway.http.api import Api

_router = APIRouter()


@_router.get("/health")
async def health() -> Response:
    """Answer 200 while the gateway itself works."""
    return JSONResponse({"status": "ok"})


@_router.get("/ready")
async def ready(gateway: WholeGateway) -> Response:
    """Answer 200 while at least one Cog server is healthy, else 503, with the state of each."""
    servers = [
        {
            "url": server.upstream.name,
            "healthy": server.is_healthy,
            "outstanding": server.outstanding,
            **({} if server.is_healthy else {"trouble": server.trouble}),
        }
        for server in gateway.pool.servers
    ]
    is_ready = gateway.pool.healthy() is not None
    content = {
        "status": "ready" if is_ready else "not ready",
        "servers": servers,
        "waiting": gateway.pool.num_waiting,
        "cache": gateway.settings.cache_mb is not None,
    }
    return JSONResponse(content, 200 if is_ready else 503)


def _render_error(request: Request, error: GatewayError) -> Response:
    return JSONResponse({"status": error.title, "detail": error.detail}, error.status)


PROBES = Api(_router, ("/health", "/ready"), _render_error)
