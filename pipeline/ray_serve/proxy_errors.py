"""What Ray Serve's HTTP proxy answers when the gateway's replica died before its answer began: an error of the APIs.

Ray's proxy sends nothing then, so that its web server answers `Internal Server Error`.
"""

from __future__ import annotations

from typing import Final

from fastapi import Request
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.app import APIS
from gateway.errors import GatewayError
from gateway.http.api import RenderError, error_renderer
from gateway.http.security import SecurityHeaders

# Ray Serve's proxy takes middlewares from the function that this environment variable names.
PROXY_ENVIRONMENT: Final = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}:middlewares"}
_RETRY_SECONDS: Final = 5.0  # Ray starts another replica in about that time


class _LostError(GatewayError):
    status = 503
    title = "The gateway ended"


def middlewares() -> list[Middleware]:
    """Called by Ray Serve in its proxy; each middleware is outside of those before it."""
    return [Middleware(LostAnswers, render=error_renderer(APIS)), Middleware(SecurityHeaders)]


class LostAnswers:
    """ASGI middleware: answers a request that the application leaves without an answer.

    Args:
        app: the application.
        render: writes an error in the shape of the API that was asked.
    """

    def __init__(self, app: ASGIApp, render: RenderError) -> None:
        self._app = app
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        has_started = False

        async def note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        await self._app(scope, receive, note)
        if not has_started and scope["type"] == "http":
            error = _LostError("the gateway ended while it had this request; send it again", retry_after=_RETRY_SECONDS)
            await self._render(Request(scope, receive), error)(scope, receive, send)
