"""The routes of Replicate's HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from gateway.api import Api
from gateway.bodies import read_body
from gateway.cache.cache_use import CacheUse
from gateway.errors import NotFoundError
from gateway.gateway import Gateway, get_gateway, get_whole_gateway
from gateway.model_info import ModelInfo
from gateway.predictions import Prediction, new_id, now
from gateway.replicate.objects import base_url, created_object, model_object, prediction_object, version_object
from gateway.replicate.problems import render_problem
from gateway.replicate.requests import (
    CreateBody,
    check_model,
    check_version,
    decode_cursor,
    encode_cursor,
    position_of,
    wait_seconds,
    webhook_of,
)
from gateway.replicate.streaming import stream_kept, stream_run
from gateway.replicate.webhooks import open_webhooks, secret_of, webhook_secret

_CANCEL_SECONDS = 5.0  # for a prediction to end after it was cancelled, before the answer is sent
_router = APIRouter(prefix="/v1")
TheGateway = Annotated[Gateway, Depends(get_gateway)]


@_router.post("/predictions")
async def create_prediction(request: Request, gateway: TheGateway) -> Response:
    """Create a prediction of the version in the body."""
    body = await read_body(request, CreateBody, max_bytes=gateway.settings.max_body_bytes)
    info = await gateway.model.read()
    check_version(body.version, info)
    return await _create(request, gateway, body, info)


@_router.post("/models/{owner}/{name}/predictions")
@_router.post("/deployments/{owner}/{name}/predictions")
async def create_prediction_of_model(request: Request, gateway: TheGateway, owner: str, name: str) -> Response:
    """Create a prediction of the model in the path."""
    body = await read_body(request, CreateBody, max_bytes=gateway.settings.max_body_bytes)
    info = await gateway.model.read()
    check_model(owner, name, info)
    if body.version is not None:
        check_version(body.version, info)
    return await _create(request, gateway, body, info)


@_router.get("/predictions")
async def list_predictions(request: Request, gateway: TheGateway, cursor: str | None = None) -> Response:
    """A page of predictions, newest first."""
    page = await gateway.store.page(**decode_cursor(cursor) if cursor is not None else {})
    base = base_url(request, gateway.settings)
    results = [prediction_object(prediction, base) for prediction in page.predictions]
    links = {
        name: number and f"{base}/v1/predictions?cursor={encode_cursor(direction, number)}"
        for name, direction, number in (("previous", "newer", page.newer), ("next", "older", page.older))
    }
    return JSONResponse({**links, "results": results})


@_router.get("/predictions/{prediction_id}")
async def get_prediction(request: Request, gateway: TheGateway, prediction_id: str) -> Response:
    """A prediction with what it has produced so far."""
    return _show(request, gateway, await _find(gateway, prediction_id))


@_router.post("/predictions/{prediction_id}/cancel")
async def cancel_prediction(request: Request, gateway: TheGateway, prediction_id: str) -> Response:
    """Cancel a prediction; one that has ended stays as it is."""
    run = gateway.runner.find(prediction_id)
    if run is not None:
        gateway.runner.cancel(prediction_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await run.finished()
    return _show(request, gateway, run.shown() if run else await _find(gateway, prediction_id))


@_router.delete("/predictions/{prediction_id}")
async def delete_prediction(gateway: TheGateway, prediction_id: str) -> Response:
    """Delete a prediction with its input, output and logs; one that runs is cancelled first. Not Replicate's."""
    if not await gateway.runner.delete(prediction_id):
        raise NotFoundError(f"there is no prediction {prediction_id[:100]}")
    return Response(status_code=204)


@_router.get("/predictions/{prediction_id}/stream")
async def stream_prediction(
    request: Request, gateway: Annotated[Gateway, Depends(get_whole_gateway)], prediction_id: str
) -> Response:
    """The prediction's output and logs as server-sent events, from the start or after Last-Event-ID.

    It needs no key: Replicate's JavaScript client sends none here. The page /p/ID shows the same to who has the id.
    """
    position = position_of(request.headers.get("last-event-id"))
    run = gateway.runner.find(prediction_id)
    events = stream_run(run, position) if run else stream_kept(await _find(gateway, prediction_id), position)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, headers=headers, media_type="text/event-stream")


@_router.get("/webhooks/default/secret")
async def get_webhook_secret(request: Request, gateway: TheGateway) -> Response:
    """The key with which the webhooks of the caller's predictions are signed."""
    return JSONResponse({"key": secret_of(await webhook_secret(gateway.store), request.scope.get("gateway_caller"))})


@_router.get("/models/{owner}/{name}")
async def get_model(request: Request, gateway: TheGateway, owner: str, name: str) -> Response:
    """The model with its version."""
    info = await _model(gateway, owner, name)
    return JSONResponse(model_object(info, base_url(request, gateway.settings), run_count=await gateway.store.count()))


@_router.get("/models/{owner}/{name}/versions")
async def list_versions(gateway: TheGateway, owner: str, name: str) -> Response:
    """The only version, as a page."""
    info = await _model(gateway, owner, name)
    return JSONResponse({"previous": None, "next": None, "results": [version_object(info)]})


@_router.get("/models/{owner}/{name}/versions/{version}")
async def get_version(gateway: TheGateway, owner: str, name: str, version: str) -> Response:
    """The version with its schema."""
    info = await _model(gateway, owner, name)
    if version != info.version:
        raise NotFoundError(f"version {version[:100]} is not served here; {info.version} is")
    return JSONResponse(version_object(info))


async def _create(request: Request, gateway: Gateway, body: CreateBody, info: ModelInfo) -> Response:
    seconds = wait_seconds(request.headers.get("prefer", ""))
    info.check_names(body.input)
    prediction = Prediction(
        id=new_id(),
        model=info.name,
        version=info.version,
        input=info.without_nulls(body.input),
        created_at=now(),
        weights_digest=gateway.settings.weights_digest,
        webhook=await webhook_of(body, gateway.settings),
    )
    run = await gateway.runner.start(prediction, CacheUse.of(request.headers))
    if seconds:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for would make a task
                await run.finished()
    shown = created_object(run.shown(), base_url(request, gateway.settings))
    return JSONResponse(shown, 201)


async def _find(gateway: Gateway, prediction_id: str) -> Prediction:
    prediction = await gateway.runner.get(prediction_id)
    if prediction is None:
        raise NotFoundError(f"there is no prediction {prediction_id[:100]}")
    return prediction


def _show(request: Request, gateway: Gateway, prediction: Prediction) -> Response:
    return JSONResponse(prediction_object(prediction, base_url(request, gateway.settings)))


async def _model(gateway: Gateway, owner: str, name: str) -> ModelInfo:
    info = await gateway.model.read()
    check_model(owner, name, info)
    return info


REPLICATE = Api(
    _router,
    prefixes=("/v1/predictions", "/v1/models/", "/v1/deployments/", "/v1/webhooks/"),
    render_error=render_problem,
    open=open_webhooks,
)
