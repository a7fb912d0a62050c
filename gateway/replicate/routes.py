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
from gateway.door import Door, get_door, get_whole_door
from gateway.errors import NotFoundError
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
TheDoor = Annotated[Door, Depends(get_door)]


@_router.post("/predictions")
async def create_prediction(request: Request, door: TheDoor) -> Response:
    """Create a prediction of the version in the body."""
    body = await read_body(request, CreateBody, max_bytes=door.settings.max_body_bytes)
    info = await door.model.read()
    check_version(body.version, info)
    return await _create(request, door, body, info)


@_router.post("/models/{owner}/{name}/predictions")
@_router.post("/deployments/{owner}/{name}/predictions")
async def create_prediction_of_model(request: Request, door: TheDoor, owner: str, name: str) -> Response:
    """Create a prediction of the model in the path."""
    body = await read_body(request, CreateBody, max_bytes=door.settings.max_body_bytes)
    info = await door.model.read()
    check_model(owner, name, info)
    if body.version is not None:
        check_version(body.version, info)
    return await _create(request, door, body, info)


@_router.get("/predictions")
async def list_predictions(request: Request, door: TheDoor, cursor: str | None = None) -> Response:
    """A page of predictions, newest first."""
    page = await door.store.page(**decode_cursor(cursor) if cursor is not None else {})
    base = base_url(request, door.settings)
    results = [prediction_object(prediction, base) for prediction in page.predictions]
    links = {
        name: number and f"{base}/v1/predictions?cursor={encode_cursor(direction, number)}"
        for name, direction, number in (("previous", "newer", page.newer), ("next", "older", page.older))
    }
    return JSONResponse({**links, "results": results})


@_router.get("/predictions/{prediction_id}")
async def get_prediction(request: Request, door: TheDoor, prediction_id: str) -> Response:
    """A prediction with what it has produced so far."""
    return _show(request, door, await _find(door, prediction_id))


@_router.post("/predictions/{prediction_id}/cancel")
async def cancel_prediction(request: Request, door: TheDoor, prediction_id: str) -> Response:
    """Cancel a prediction; one that has ended stays as it is."""
    run = door.runner.find(prediction_id)
    if run is not None:
        door.runner.cancel(prediction_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await run.finished()
    return _show(request, door, run.shown() if run else await _find(door, prediction_id))


@_router.delete("/predictions/{prediction_id}")
async def delete_prediction(door: TheDoor, prediction_id: str) -> Response:
    """Delete a prediction with its input, output and logs; one that runs is cancelled first. Not Replicate's."""
    if not await door.runner.delete(prediction_id):
        raise NotFoundError(f"there is no prediction {prediction_id[:100]}")
    return Response(status_code=204)


@_router.get("/predictions/{prediction_id}/stream")
async def stream_prediction(
    request: Request, door: Annotated[Door, Depends(get_whole_door)], prediction_id: str
) -> Response:
    """The prediction's output and logs as server-sent events, from the start or after Last-Event-ID.

    It needs no key: Replicate's JavaScript client sends none here. The page /p/ID shows the same to who has the id.
    """
    position = position_of(request.headers.get("last-event-id"))
    run = door.runner.find(prediction_id)
    events = stream_run(run, position) if run else stream_kept(await _find(door, prediction_id), position)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, headers=headers, media_type="text/event-stream")


@_router.get("/webhooks/default/secret")
async def get_webhook_secret(request: Request, door: TheDoor) -> Response:
    """The key with which the webhooks of the caller's predictions are signed."""
    return JSONResponse({"key": secret_of(await webhook_secret(door.store), request.scope.get("door_caller"))})


@_router.get("/models/{owner}/{name}")
async def get_model(request: Request, door: TheDoor, owner: str, name: str) -> Response:
    """The model with its version."""
    info = await _model(door, owner, name)
    return JSONResponse(model_object(info, base_url(request, door.settings), run_count=await door.store.count()))


@_router.get("/models/{owner}/{name}/versions")
async def list_versions(door: TheDoor, owner: str, name: str) -> Response:
    """The only version, as a page."""
    info = await _model(door, owner, name)
    return JSONResponse({"previous": None, "next": None, "results": [version_object(info)]})


@_router.get("/models/{owner}/{name}/versions/{version}")
async def get_version(door: TheDoor, owner: str, name: str, version: str) -> Response:
    """The version with its schema."""
    info = await _model(door, owner, name)
    if version != info.version:
        raise NotFoundError(f"version {version[:100]} is not served here; {info.version} is")
    return JSONResponse(version_object(info))


async def _create(request: Request, door: Door, body: CreateBody, info: ModelInfo) -> Response:
    seconds = wait_seconds(request.headers.get("prefer", ""))
    info.check_names(body.input)
    prediction = Prediction(
        id=new_id(),
        model=info.name,
        version=info.version,
        input=info.without_nulls(body.input),
        created_at=now(),
        weights_digest=door.settings.weights_digest,
        webhook=await webhook_of(body, door.settings),
    )
    run = await door.runner.start(prediction, CacheUse.of(request.headers))
    if seconds:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for would make a task
                await run.finished()
    shown = created_object(run.shown(), base_url(request, door.settings))
    return JSONResponse(shown, 201)


async def _find(door: Door, prediction_id: str) -> Prediction:
    prediction = await door.runner.get(prediction_id)
    if prediction is None:
        raise NotFoundError(f"there is no prediction {prediction_id[:100]}")
    return prediction


def _show(request: Request, door: Door, prediction: Prediction) -> Response:
    return JSONResponse(prediction_object(prediction, base_url(request, door.settings)))


async def _model(door: Door, owner: str, name: str) -> ModelInfo:
    info = await door.model.read()
    check_model(owner, name, info)
    return info


REPLICATE = Api(
    _router,
    prefixes=("/v1/predictions", "/v1/models/", "/v1/deployments/", "/v1/webhooks/"),
    render_error=render_problem,
    open=open_webhooks,
)
