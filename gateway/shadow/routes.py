"""The page of the answers in which a candidate version differs from the one that is served."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Response

from gateway.errors import UnavailableError
from gateway.gateway import Gateway
from gateway.http.api import Api
from gateway.pages.routes import PageGateway, render_error, render_page
from gateway.shadow.pair_table import PAGE, Pair

_router = APIRouter()
_DIGITS: Final = 9


@_router.get("/shadow")
async def page(gateway: PageGateway, start: str = "") -> Response:
    """The pairs of the caller's own requests, or as an admin of all."""
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


SHADOW = Api(_router, ("/shadow",), render_error)
