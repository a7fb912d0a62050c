"""Counts HTTP requests by API and status, as ASGI middleware."""

from __future__ import annotations

import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.gateway import Gateway

METHODS: Final = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class RequestCounter:
    """Counts what the application inside answers.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on and count it when its response is complete or has failed."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        status, seconds = 500, None  # for an exception that nothing inside answers

        async def note(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.monotonic() - start
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            gateway: Gateway = scope["app"].state.gateway
            gateway.meters.count_request(
                api=api_of(scope),
                method=scope["method"] if scope["method"] in METHODS else "other",
                status=status,
                error=scope.get("gateway_error"),
                seconds=time.monotonic() - start if seconds is None else seconds,
            )


def api_of(scope: Scope) -> str:
    """The API that answered, by the package of its route: gateway.replicate.routes is `replicate`. Else `none`."""
    parts = str(getattr(scope.get("endpoint"), "__module__", "")).split(".")
    return parts[1] if parts[0] == "gateway" and len(parts) > 1 else "none"
