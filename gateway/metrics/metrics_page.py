"""`GET /metrics`, as Prometheus reads it."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.api import Api
from gateway.errors import GatewayError
from gateway.gateway import Gateway, get_gateway
from gateway.metrics.prediction_observer import observe

_router = APIRouter()


@_router.get("/metrics")
async def metrics(gateway: Annotated[Gateway, Depends(get_gateway)]) -> Response:
    """All counters, gauges and histograms of this gateway since its start.

    What begins with gateway_ is there under its name of earlier versions as well, for dashboards that ask for door_.
    """
    lines = generate_latest(gateway.meters.registry).splitlines(keepends=True)
    old = [line.replace(b"gateway_", b"door_", 1) for line in lines if re.match(rb"(# \w+ )?gateway_", line)]
    return Response(b"".join(lines + old), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _render_error(request: Request, error: GatewayError) -> Response:
    return PlainTextResponse(f"{error.title}: {error.detail}\n", error.status)


METRICS = Api(_router, ("/metrics",), _render_error, open=observe)
