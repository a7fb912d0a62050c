"""Protects callers' browsers: headers that they obey, checks of where a request comes from and goes to, and CORS."""

from __future__ import annotations

import contextlib
import re
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import BadRequestError, ForbiddenError
from gateway.settings import GatewaySettings

CONTENT_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
    "Referrer-Policy": "no-referrer",  # an address /p/ID is a secret between those who have it
    "Cross-Origin-Opener-Policy": "same-origin",
}
_SAFE: Final = {"GET", "HEAD", "OPTIONS"}
_CORS_SECONDS: Final = 600
_HOST: Final = re.compile(r"(?:([\w.-]+)|\[([0-9a-f:.]+)\])(?::[0-9]*)?")


class SecurityHeaders:
    """ASGI middleware: adds headers to every response that has not set them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, add if scope["type"] == "http" else send)


def allow_origins(app: FastAPI, settings: GatewaySettings) -> None:
    """Let scripts of the configured sites read answers. They send keys themselves: cookies are not for them."""
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-Id"],
            max_age=_CORS_SECONDS,
        )


async def check_sender(request: Request) -> None:
    """Refuse a request to another host's name, or from a page of another site; for `Depends`.

    Raises:
        BadRequestError: the request names several hosts.
        ForbiddenError: it is for another host's name, or comes from a site that is not allowed.
    """
    _check_host(request)
    _check_origin(request)


def _check_origin(request: Request) -> None:
    """Refuse what a page of another site sends.

    A browser sends a simple POST anywhere without asking, and a gateway on a laptop trusts who reaches it.

    Raises:
        ForbiddenError: the request changes something and comes from a site that is not allowed.
    """
    origin = request.headers.get("origin")
    if origin is None or request.method in _SAFE:
        return
    settings: GatewaySettings = request.app.state.gateway.settings
    own = {request.headers.get("host"), urlsplit(settings.base_url).netloc}
    with contextlib.suppress(ValueError):  # not a URL
        if urlsplit(origin).netloc in own:
            return
    if not {"*", origin}.isdisjoint(settings.cors_origins):
        return
    text = f"pages of {origin[:200]!r} may not use this gateway; GATEWAY_CORS_ORIGINS lists those that may"
    raise ForbiddenError(text)


def _check_host(request: Request) -> None:
    """Refuse a request that was sent to another name than the gateway's.

    A site can let its own name resolve to 127.0.0.1 (DNS rebinding). To a browser, the gateway is then a part of the
    site, whose scripts may read all answers. Only the header Host tells.

    Raises:
        BadRequestError: the request names several hosts.
        ForbiddenError: the name is not one of the gateway's.
    """
    settings: GatewaySettings = request.app.state.gateway.settings
    hosts = request.headers.getlist("host")
    if len(hosts) > 1:
        raise BadRequestError("the request has several Host headers")
    host = "".join(hosts)
    match = _HOST.fullmatch(host.lower())
    if not settings.allows_host((match[1] or match[2]) if match else ""):
        text = f"this gateway is not called {host[:200]!r}; its operator sets other names with GATEWAY_HOSTS"
        raise ForbiddenError(text)
