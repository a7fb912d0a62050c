"""Cog's own protocol, for those who knew the server's address before the gateway stood in front of it.

Requests are passed on as they are, and neither kept nor counted. What stays out: `/shutdown`, which any page and any
webhook could call. Cog's webhooks go through the gateway: Cog follows redirects, which could lead to `/shutdown`.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import quote, urlencode

import pydantic_core
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from yarl import URL

from gateway.errors import BadRequestError, GatewayError, InvalidInputError, NotFoundError, UnavailableError
from gateway.gateway import Gateway, TheGateway, WholeGateway
from gateway.http.api import Api
from gateway.http.bodies import read_bytes
from gateway.http.webhook_client import WebhookError, check_webhook
from gateway.replicate.webhooks import webhook_secret
from gateway.settings import is_loopback
from gateway.upstream.model_server import Upstream, UpstreamError
from gateway.upstream.pool import Server

_router = APIRouter()
_PASSED_ON: Final = ("accept", "content-type", "prefer", "traceparent", "tracestate")
_PASSED_BACK: Final = ("content-type", "location", "cache-control", "retry-after")
_RELAY: Final = "/cog-webhooks"
_RELAYED: Final = ("content-type", "user-agent", "traceparent", "tracestate")
_JSON_FACTOR: Final = 6  # bytes of JSON for a byte of output, at most


@_router.post("/predictions")
@_router.put("/predictions/{prediction_id}")
async def predict(request: Request, gateway: TheGateway, prediction_id: str | None = None) -> Response:
    """Start a prediction; the answer is Cog's, whole or as a stream."""
    body = await read_bytes(request, max_bytes=gateway.settings.max_body_bytes)
    _, upstream = _server_for_all(gateway)
    try:
        content = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if isinstance(content, dict):
        if content.get("webhook") is not None:
            await check_webhook(content["webhook"], gateway.settings)
            content["webhook"] = await _relay_address(content["webhook"], gateway, upstream)
        if isinstance(content.get("input"), dict):
            content["input"] = (await gateway.model.read()).without_nulls(content["input"])
    path = "predictions" if prediction_id is None else f"predictions/{quote(prediction_id, safe='')}"
    # Chosen once more: the servers may have been replaced while the model's schema was read.
    return await _pass_on(request, *_server_for_all(gateway), path, pydantic_core.to_json(content))


@_router.post("/predictions/{prediction_id}/cancel")
async def cancel(request: Request, gateway: TheGateway, prediction_id: str) -> Response:
    """Cancel a prediction that was started here."""
    return await _pass_on(request, *_server_for_all(gateway), f"predictions/{quote(prediction_id, safe='')}/cancel")


@_router.get("/health-check")
@_router.get("/openapi.json")
async def look(request: Request, gateway: TheGateway) -> Response:
    """Ask for Cog's health, or for the model's schema."""
    return await _pass_on(request, *_server(gateway), request.url.path)


@_router.post(_RELAY)
async def relay(request: Request, gateway: WholeGateway, to: str = "", signature: str = "") -> Response:
    """Pass on a webhook of Cog's; the answer has the receiver's status, after which Cog may send it again."""
    if not hmac.compare_digest(signature.encode(), (await _signature(to, gateway)).encode()):
        raise NotFoundError("this is not an address that the gateway gave to Cog")
    body = await read_bytes(request, max_bytes=_JSON_FACTOR * gateway.settings.max_output_bytes)
    headers = {name: value for name in _RELAYED if (value := request.headers.get(name)) is not None}
    try:
        return Response(status_code=await gateway.webhooks.post(to, body, headers))
    except WebhookError as error:
        raise _NotRelayedError(f"the webhook was not sent: {error}") from error


class _NotRelayedError(GatewayError):
    status = 502
    title = "Bad gateway"


async def _relay_address(webhook: str, gateway: Gateway, upstream: Upstream) -> str:
    """The address where Cog sends a webhook, so that the gateway passes it on."""
    if not is_loopback(URL(upstream.url).host or ""):
        text = "is taken at /v1/predictions only: Cog's server on another machine may not find this gateway"
        raise InvalidInputError.at(("webhook",), text, "not_allowed")
    query = urlencode({"to": webhook, "signature": await _signature(webhook, gateway)})
    return f"{gateway.settings.local_url}{_RELAY}?{query}"


async def _signature(webhook: str, gateway: Gateway) -> str:
    secret = await webhook_secret(gateway.store)
    return hmac.new(secret.encode(), f"{_RELAY} {webhook}".encode(), "sha256").hexdigest()


def _server_for_all(gateway: Gateway) -> tuple[Server, Upstream]:
    """The server, in which anybody who knows a prediction's id can read and cancel it, and nobody's limits count."""
    if gateway.callers is not None:
        raise NotFoundError("Cog's protocol knows no keys; this gateway asks for them, so use /v1/predictions")
    return _server(gateway)


def _server(gateway: Gateway) -> tuple[Server, Upstream]:
    """The server to pass requests on to, and its client."""
    servers = gateway.pool.servers
    if len(servers) > 1 or not isinstance(upstream := servers[0].upstream, Upstream):
        raise NotFoundError("Cog's protocol is for a gateway with one Cog server; use /v1/predictions")
    return servers[0], upstream


async def _pass_on(request: Request, server: Server, upstream: Upstream, path: str, body: bytes = b"") -> Response:
    headers = {name: value for name in _PASSED_ON if (value := request.headers.get(name)) is not None}
    async with AsyncExitStack() as opening:
        opening.enter_context(server.passing_on())
        try:
            answer = await opening.enter_async_context(upstream.ask_raw(request.method, path, headers, body))
        except UpstreamError as error:
            raise UnavailableError(f"Cog's server does not answer: {error}") from error
        opened = opening.pop_all()

    async def parts() -> AsyncIterator[bytes]:
        async with opened:
            async for part in answer.content.iter_any():
                yield part

    kept = {name: value for name in _PASSED_BACK if (value := answer.headers.get(name)) is not None}
    return StreamingResponse(parts(), status_code=answer.status, headers=kept)


def _render_error(request: Request, error: GatewayError) -> Response:
    """The answer for an error, in the shape of Cog's errors."""
    fields = [{"loc": ["body", *field.path], "msg": field.message, "type": field.kind} for field in error.fields]
    return JSONResponse({"detail": fields or error.detail}, error.status)


COG = Api(_router, ("/predictions", "/health-check", "/openapi.json", _RELAY), _render_error)
