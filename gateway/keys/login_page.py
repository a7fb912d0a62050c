"""The page where a browser gives its key, which it then sends as a cookie."""

from __future__ import annotations

import html
from typing import Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from gateway.errors import GatewayError
from gateway.gateway import WholeGateway
from gateway.http.api import Api
from gateway.http.bodies import read_bytes
from gateway.keys.callers import COOKIE

_router = APIRouter()
_MAX_BYTES: Final = 4096
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Key</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<main><h1>API key</h1>{message}<form method="post" action="/login">
<label>Key <input name="key" type="password" autocomplete="off" required autofocus></label>
<button>Continue</button></form></main></html>"""
# With `no-referrer`, which other pages have, a browser sends the form with `Origin: null`, as from another site.
_HEADERS: Final = {"Referrer-Policy": "same-origin"}


@_router.get("/login")
async def show() -> Response:
    """The page with the form."""
    return _page("", 200)


@_router.post("/login")
async def log_in(request: Request, gateway: WholeGateway) -> Response:
    """Keep a valid key in a cookie that scripts cannot read and other sites cannot send."""
    content = await read_bytes(request, max_bytes=_MAX_BYTES)
    key = parse_qs(content.decode(errors="replace")).get("key", [""])[0].strip()
    if gateway.callers is not None and not gateway.callers.knows(key):
        return _page("This key is unknown or was revoked.", 401)
    response = RedirectResponse("/", 303)
    is_https = (gateway.settings.public_url or str(request.url)).startswith("https:")
    response.set_cookie(COOKIE, key, httponly=True, samesite="strict", secure=is_https)
    return response


def _page(message: str, status: int) -> Response:
    text = f'<p role="alert">{html.escape(message)}</p>' if message else ""
    return HTMLResponse(_PAGE.format(message=text), status, headers=_HEADERS)


def _render_error(request: Request, error: GatewayError) -> Response:
    return _page(error.detail, error.status)


LOGIN = Api(_router, ("/login",), _render_error)
