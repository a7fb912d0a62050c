"""Predictions, models, versions and errors as Replicate's API shows them."""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import JsonValue

from gateway.errors import GatewayError
from gateway.predictions.prediction import Prediction, Status
from gateway.settings import GatewaySettings
from gateway.upstream.model_info import ModelInfo

_HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?|\[[0-9a-fA-F:]{2,45}\](:\d{1,5})?")


def base_url(request: Request, settings: GatewaySettings) -> str:
    """The gateway's address for links: the configured one, else the one that the client used."""
    host = request.headers.get("host", "")
    if settings.public_url is None and _HOST.fullmatch(host):
        return f"{request.url.scheme}://{host}"
    return settings.base_url


def prediction_object(prediction: Prediction, base: str) -> dict[str, JsonValue]:
    """A prediction as Replicate's API shows it."""
    address = f"{base}/v1/predictions/{prediction.id}"
    return {
        "id": prediction.id,
        "model": prediction.model,
        "version": prediction.version,
        "input": dict(prediction.input),
        "output": prediction.output,
        "logs": prediction.logs,
        "error": prediction.error,
        "status": prediction.status.value,
        "metrics": dict(prediction.metrics),
        "created_at": prediction.created_at,
        "started_at": prediction.started_at,
        "completed_at": prediction.completed_at,
        "data_removed": False,
        "source": prediction.source,
        "urls": {
            "get": address,
            "cancel": f"{address}/cancel",
            "stream": f"{address}/stream",
            "web": f"{base}/p/{prediction.id}",
        },
    }


def created_object(prediction: Prediction, base: str) -> dict[str, JsonValue]:
    """The answer to a creation. Clients take any status but `starting` as the end, and its output as the whole."""
    shown = prediction_object(prediction, base)
    if not prediction.status.is_final:
        shown.update(status=Status.STARTING.value, output=None, started_at=None)
    return shown


def model_object(info: ModelInfo, base: str, *, run_count: int) -> dict[str, JsonValue]:
    """The model with its only version."""
    owner, name = info.name.split("/")
    return {
        "url": f"{base}/",  # the playground
        "owner": owner,
        "name": name,
        "description": None,
        "visibility": "private",
        "github_url": None,
        "paper_url": None,
        "license_url": None,
        "run_count": run_count,
        "cover_image_url": None,
        "default_example": None,
        "latest_version": version_object(info),
    }


def version_object(info: ModelInfo) -> dict[str, JsonValue]:
    """The version with its schema, from which clients learn whether the output is an iterator."""
    return {
        "id": info.version,
        "created_at": info.created_at,
        "cog_version": info.cog_version,
        "openapi_schema": dict(info.openapi),
    }


def account_object(name: str) -> dict[str, JsonValue]:
    """The account of a caller."""
    return {"type": "user", "username": name, "name": name, "github_url": None}


def deployment_object(info: ModelInfo) -> dict[str, JsonValue]:
    """The model as a deployment: what its servers run on is not the gateway's to say."""
    owner, name = info.name.split("/")
    release: dict[str, JsonValue] = {
        "number": 1,
        "model": info.name,
        "version": info.version,
        "created_at": info.created_at,
        "created_by": account_object(owner),
        "configuration": {"hardware": "unknown", "min_instances": 1, "max_instances": 1},
    }
    return {"owner": owner, "name": name, "current_release": release}


def page_object(*results: JsonValue) -> dict[str, JsonValue]:
    """The only page of a list."""
    return {"previous": None, "next": None, "results": [*results]}


def render_problem(request: Request, error: GatewayError) -> Response:
    """The answer for an error: problem details (RFC 9457) with a list of wrong fields."""
    content: dict[str, object] = {"title": error.title, "status": error.status, "detail": error.detail}
    if error.fields:
        content["invalid_fields"] = [
            {"field": ".".join(field.path), "type": field.kind, "description": field.message} for field in error.fields
        ]
    return JSONResponse(content, error.status, media_type="application/problem+json")
