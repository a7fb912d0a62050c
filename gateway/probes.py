"""Whether the door lives (`/health`), and whether it can answer predictions (`/ready`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from gateway.api import Api
from gateway.door import Door, get_whole_door
from gateway.errors import DoorError

_router = APIRouter()


@_router.get("/health")
async def health() -> Response:
    """200 while the door itself works."""
    return JSONResponse({"status": "ok"})


@_router.get("/ready")
async def ready(door: Annotated[Door, Depends(get_whole_door)]) -> Response:
    """200 while at least one Cog server is healthy, else 503; and the state of each."""
    servers = [
        {
            "url": server.upstream.name,
            "healthy": server.is_healthy,
            "outstanding": server.outstanding,
            **({} if server.is_healthy else {"trouble": server.trouble}),
        }
        for server in door.pool.servers
    ]
    is_ready = door.pool.healthy() is not None
    content = {
        "status": "ready" if is_ready else "not ready",
        "servers": servers,
        "waiting": door.pool.num_waiting,
        "cache": door.settings.cache_mb is not None,
    }
    return JSONResponse(content, 200 if is_ready else 503)


def _render_error(request: Request, error: DoorError) -> Response:
    return JSONResponse({"status": error.title, "detail": error.detail}, error.status)


PROBES = Api(_router, ("/health", "/ready"), _render_error)
