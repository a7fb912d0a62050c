"""The door as the ingress of Ray Serve."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from ray import serve

from gateway.app import create_app
from gateway.http.request_log import configure_logging
from gateway.settings import GatewaySettings
from pipeline.ray_serve.ray_upstream import RayUpstream

MODEL: Final = "model"  # name of the application and of its deployment
DOOR: Final = "door"


def build_door() -> FastAPI:
    """The door's application, with the settings of its environment; called in the door's replica."""
    configure_logging()
    return create_app(GatewaySettings(), lambda: [RayUpstream(MODEL, MODEL)])


@serve.ingress(build_door)
class DoorReplica:
    """The door. There is one, because it keeps the predictions."""
