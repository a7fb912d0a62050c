"""What Ray Serve's HTTP proxy answers when the gateway's replica died before its answer began: an error of the APIs.

Ray's proxy sends nothing then, so that its web server answers `Internal Server Error`.
"""

from __future__ import annotations

from typing import Final

from starlette.middleware import Middleware

from gateway.app import APIS
from gateway.errors import GatewayError
from gateway.http.api import Unanswered, error_renderer
from gateway.http.security import SecurityHeaders

PROXY_ENVIRONMENT: Final = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}:middlewares",  # the function that gives it middlewares
    # Ray starts its proxy anew after three checks of five seconds, in which it may not have started on busy cores.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "100",
}
_RETRY_SECONDS: Final = 5.0  # Ray starts another replica in about that time


class _LostError(GatewayError):
    status = 503
    title = "The gateway ended"


def middlewares() -> list[Middleware]:
    """Called by Ray Serve in its proxy; each middleware is outside of those before it."""
    lost = _LostError("the gateway ended while it had this request; send it again", retry_after=_RETRY_SECONDS)
    return [Middleware(Unanswered, render=error_renderer(APIS), error=lost), Middleware(SecurityHeaders)]
