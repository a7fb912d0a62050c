"""What an HTTP API of the gateway is made of: its routes, and the shape of its errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import FieldError, GatewayError, InvalidInputError, NotFoundError
from gateway.gateway import Gateway

_log = logging.getLogger(__name__)
RenderError = Callable[[Request, GatewayError], Response]


class _MethodError(GatewayError):
    status = 405
    title = "Method not allowed"


class _InternalError(GatewayError):
    status = 500
    title = "Internal error"


@dataclass(frozen=True, slots=True)
class Api:
    """One HTTP API.

    Args:
        router: the API's routes.
        prefixes: the beginnings of paths whose errors have the API's shape; the longest of all APIs counts.
        render_error: writes an error in the API's shape.
        open: what runs beside the routes while the gateway is open.
    """

    router: APIRouter
    prefixes: tuple[str, ...]
    render_error: RenderError
    open: Callable[[Gateway], AbstractAsyncContextManager[None]] | None = None


def include(app: FastAPI, apis: Sequence[Api]) -> None:
    """Add the routes of the APIs, and write each error in the shape of the API whose path was asked."""
    for api in apis:
        app.include_router(api.router)
    render = error_renderer(apis)

    async def on_gateway_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)
        return render(request, error)

    async def on_wrong_query(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields = [FieldError(tuple(map(str, one["loc"][1:])), one["msg"], one["type"]) for one in error.errors()]
        return render(request, InvalidInputError.of(tuple(fields)))

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 303:  # to another page
            return Response(status_code=303, headers=error.headers)
        what = f"{request.method} {request.url.path}"
        if error.status_code == 405:
            response = render(request, _MethodError(f"{what}: this method is not known here"))
            response.headers.update(error.headers or {})
            return response
        if error.status_code == 404:
            return render(request, NotFoundError(f"{what}: there is nothing at this address"))
        other = GatewayError(f"{what}: {error.detail}")
        other.status, other.title = error.status_code, HTTPStatus(error.status_code).phrase
        return render(request, other)

    app.add_exception_handler(GatewayError, on_gateway_error)
    app.add_exception_handler(RequestValidationError, on_wrong_query)
    app.add_exception_handler(HTTPException, on_http_error)
    failed = _InternalError("internal error of the gateway; its log has the reason")
    app.add_middleware(Unanswered, render=render, error=failed)


def error_renderer(apis: Sequence[Api]) -> RenderError:
    """What writes an error in the shape of the API whose path was asked; of the first one, where it is no API's."""
    shapes = sorted(((prefix, api) for api in apis for prefix in api.prefixes), key=lambda pair: -len(pair[0]))

    def render(request: Request, error: GatewayError) -> Response:
        path = request.url.path
        api = next((api for prefix, api in shapes if path.startswith(prefix)), apis[0])
        request.scope["gateway_error"] = type(error).__name__.strip("_")  # for the metrics
        response = api.render_error(request, error)
        if error.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if error.retry_after is not None:
            response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
        return response

    return render


class Unanswered:
    """ASGI middleware: answers a request to which the application began no answer, and logs why where it failed.

    Starlette's own handler of all exceptions is outside of every middleware, so that its answers would have no security
    headers and would be neither counted nor logged with the request's id.

    Args:
        app: the application.
        render: writes an error in the shape of the API that was asked.
        error: the answer.
    """

    def __init__(self, app: ASGIApp, render: RenderError, error: GatewayError) -> None:
        self._app, self._render, self._error = app, render, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        has_started = False

        async def note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception:
            if has_started or scope["type"] != "http":
                raise
            _log.exception("a request failed")
        if not has_started and scope["type"] == "http":
            await self._render(Request(scope, receive), self._error)(scope, receive, send)
