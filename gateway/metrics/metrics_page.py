"""`GET /metrics`, as Prometheus reads it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.api import Api
from gateway.door import Door, get_door
from gateway.errors import DoorError
from gateway.metrics.prediction_observer import observe

_router = APIRouter()


@_router.get("/metrics")
async def metrics(door: Annotated[Door, Depends(get_door)]) -> Response:
    """All counters, gauges and histograms of this door since its start."""
    return Response(generate_latest(door.meters.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _render_error(request: Request, error: DoorError) -> Response:
    return PlainTextResponse(f"{error.title}: {error.detail}\n", error.status)


METRICS = Api(_router, ("/metrics",), _render_error, open=observe)
