"""The page of the answers in which a candidate version differs from the one that is served."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from gateway.errors import GatewayError, UnauthorizedError, UnavailableError
from gateway.gateway import Gateway, get_gateway
from gateway.http.api import Api
from gateway.pages.routes import render_page
from gateway.shadow.pair_table import PAGE, Pair

_router = APIRouter()
_DIGITS: Final = 9


@_router.get("/shadow")
async def page(request: Request, start: str = "") -> Response:
    """The pairs of the caller's own requests, or as an admin of all."""
    try:
        gateway = await get_gateway(request)
    except UnauthorizedError:
        return RedirectResponse("/login", 303)
    first = int(start[:_DIGITS]) if start.isdecimal() else 0
    pairs, has_more = await _pairs(gateway, first)
    return render_page(
        "shadow.html",
        shadow=gateway.shadow,
        outcomes=gateway.shadow.outcomes if gateway.shadow is not None and gateway.is_admin else None,
        pairs=pairs,
        next=first + PAGE if has_more else None,
    )


async def _pairs(gateway: Gateway, start: int) -> tuple[list[Pair], bool]:
    if gateway.shadow is None or (table := gateway.shadow.table) is None:
        return [], False
    try:
        version = (await gateway.model.read()).version
    except UnavailableError:  # no server answers, so no version is served
        return [], False
    owner = None if gateway.is_admin or gateway.caller is None else gateway.caller.name
    return await table.page(version, owner, start)


def _render_error(request: Request, error: GatewayError) -> Response:
    return render_page("problem.html", status=error.status, title=error.title, detail=error.detail)


SHADOW = Api(_router, ("/shadow",), _render_error)
