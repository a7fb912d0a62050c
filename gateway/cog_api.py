"""Cog's own protocol, for those who knew the server's address before the door stood in front of it.

Requests are passed on as they are, and neither kept nor counted. What stays out: `/shutdown`, which any page and any
webhook could call, and webhooks to the servers and the door themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Final

import pydantic_core
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from gateway.api import Api
from gateway.bodies import read_bytes
from gateway.door import Door, get_door
from gateway.errors import BadRequestError, DoorError, NotFoundError, UnavailableError
from gateway.upstream import Upstream, UpstreamError
from gateway.webhook_addresses import check_webhook

_router = APIRouter()
_PASSED_ON: Final = ("accept", "content-type", "prefer", "traceparent", "tracestate")
_PASSED_BACK: Final = ("content-type", "location", "cache-control", "retry-after")
_Door = Annotated[Door, Depends(get_door)]


@_router.post("/predictions")
@_router.put("/predictions/{prediction_id}")
async def predict(request: Request, door: _Door) -> Response:
    """Start a prediction; the answer is Cog's, whole or as a stream."""
    body = await read_bytes(request, max_bytes=door.settings.max_body_bytes)
    try:
        content = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if isinstance(content, dict):
        await check_webhook(content.get("webhook"), door.settings)
        if isinstance(content.get("input"), dict):
            content["input"] = (await door.model.read()).without_nulls(content["input"])
    return await _pass_on(request, door, pydantic_core.to_json(content))


@_router.post("/predictions/{prediction_id}/cancel")
@_router.get("/health-check")
@_router.get("/openapi.json")
async def pass_on(request: Request, door: _Door) -> Response:
    """Cancel a prediction that was started here, ask for Cog's health, or for the model's schema."""
    return await _pass_on(request, door, b"")


async def _pass_on(request: Request, door: Door, body: bytes) -> Response:
    servers = [server.upstream for server in door.pool.servers]
    if len(servers) > 1 or not isinstance(upstream := servers[0], Upstream):
        raise NotFoundError("Cog's protocol is for a door with one Cog server; use /v1/predictions")
    headers = {name: value for name in _PASSED_ON if (value := request.headers.get(name)) is not None}
    stack = AsyncExitStack()
    try:
        answer = await stack.enter_async_context(upstream.ask_raw(request.method, request.url.path, headers, body))
    except UpstreamError as error:
        raise UnavailableError(f"the server does not answer: {error}") from error

    async def parts() -> AsyncIterator[bytes]:
        async with stack:
            async for part in answer.content.iter_any():
                yield part

    kept = {name: value for name in _PASSED_BACK if (value := answer.headers.get(name)) is not None}
    return StreamingResponse(parts(), status_code=answer.status, headers=kept)


def _render_error(request: Request, error: DoorError) -> Response:
    """An error in the shape of Cog's."""
    fields = [{"loc": ["body", *field.path], "msg": field.message, "type": field.kind} for field in error.fields]
    return JSONResponse({"detail": fields or error.detail}, error.status)


COG = Api(_router, ("/predictions", "/health-check", "/openapi.json"), _render_error)
