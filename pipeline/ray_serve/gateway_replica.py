"""The gateway as the ingress of Ray Serve."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from ray import serve

from gateway.app import create_app
from gateway.http.request_log import configure_logging
from gateway.settings import GatewaySettings
from pipeline.ray_serve.ray_upstream import RayUpstream

MODEL: Final = "model"  # name of the application and of its deployment
GATEWAY: Final = "gateway"


def build_gateway() -> FastAPI:
    """The gateway's application, with the settings of its environment; called in the gateway's replica."""
    configure_logging()
    return create_app(GatewaySettings(), lambda: [RayUpstream(MODEL, MODEL)])


@serve.ingress(build_gateway)
class GatewayReplica:
    """The gateway. There is one, because it keeps the predictions."""
