"""The routes of Replicate's HTTP API, and a prediction as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from gateway.cache.answer_cache import CacheUse
from gateway.errors import NotFoundError
from gateway.gateway import Gateway, TheGateway, WholeGateway
from gateway.http.api import Api
from gateway.http.bodies import read_body, read_bytes
from gateway.predictions.live_prediction import (
    Finished,
    LivePrediction,
    LogText,
    OutputPiece,
    Position,
    PredictionEvent,
    events_between,
    pieces_of,
)
from gateway.predictions.prediction import Prediction, Status, new_id, now
from gateway.replicate.files import add_file, file_object, with_files
from gateway.replicate.objects import (
    account_object,
    base_url,
    created_object,
    deployment_object,
    model_object,
    page_object,
    prediction_object,
    render_problem,
    version_object,
)
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
from gateway.replicate.webhooks import open_webhooks, secret_of, webhook_secret
from gateway.upstream.model_info import ModelInfo

_CANCEL_SECONDS = 5.0  # for a prediction to end after it was cancelled, before the answer is sent
_router = APIRouter(prefix="/v1")
QUIET_SECONDS: Final = 15.0  # then a comment is sent, so that nothing between takes the connection for dead
# What else Replicate's clients ask for; the last four are not served.
_OTHER: Final = ("account", "files", "search", "hardware", "collections", "trainings")
_REASONS: Final = {Status.CANCELED: {"reason": "canceled"}, Status.FAILED: {"reason": "error"}}


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
    live = gateway.runner.find(prediction_id)
    if live is not None:
        gateway.runner.cancel(prediction_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await live.finished()
    return _show(request, gateway, live.shown() if live else await _find(gateway, prediction_id))


@_router.delete("/predictions/{prediction_id}")
async def delete_prediction(gateway: TheGateway, prediction_id: str) -> Response:
    """Delete a prediction with its input, output and logs; one that runs is cancelled first. Not Replicate's."""
    if not await gateway.runner.delete(prediction_id):
        raise NotFoundError(f"there is no prediction {prediction_id[:100]}")
    return Response(status_code=204)


@_router.get("/predictions/{prediction_id}/stream")
async def stream_prediction(request: Request, gateway: WholeGateway, prediction_id: str) -> Response:
    """The prediction's output and logs as server-sent events, from the start or after Last-Event-ID.

    It needs no key: Replicate's JavaScript client sends none here. The page /p/ID shows the same to who has the id.
    """
    position = position_of(request.headers.get("last-event-id"))
    live = gateway.runner.find(prediction_id)
    events = stream_live(live, position) if live else stream_kept(await _find(gateway, prediction_id), position)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, headers=headers, media_type="text/event-stream")


@_router.get("/webhooks/default/secret")
async def get_webhook_secret(request: Request, gateway: TheGateway) -> Response:
    """The key with which the webhooks of the caller's predictions are signed."""
    return JSONResponse({"key": secret_of(await webhook_secret(gateway.store), request.scope.get("gateway_caller"))})


@_router.api_route("/models", methods=["QUERY"])
async def search_models(request: Request, gateway: TheGateway) -> Response:
    """The model, if its name has all words of the body, which is a text."""
    words = (await read_bytes(request, max_bytes=gateway.settings.max_body_bytes)).decode("utf-8", "replace").split()
    info = await gateway.model.read()
    if not all(word.lower() in info.name.lower() for word in words):
        return JSONResponse(page_object())
    shown = model_object(info, base_url(request, gateway.settings), run_count=await gateway.store.count())
    return JSONResponse(page_object(shown))


@_router.get("/deployments")
async def list_deployments(gateway: TheGateway) -> Response:
    """The model as the only deployment."""
    return JSONResponse(page_object(deployment_object(await gateway.model.read())))


@_router.get("/deployments/{owner}/{name}")
async def get_deployment(gateway: TheGateway, owner: str, name: str) -> Response:
    """The model as a deployment."""
    return JSONResponse(deployment_object(await _model(gateway, owner, name)))


@_router.get("/account")
async def get_account(request: Request, gateway: TheGateway) -> Response:
    """The caller, which without keys is the model's owner."""
    owner = gateway.settings.model.partition("/")[0]
    return JSONResponse(account_object(request.scope.get("gateway_caller") or owner))


@_router.post("/files")
async def create_file(request: Request, gateway: TheGateway) -> Response:
    """Keep a file for a day, whose address can be an input."""
    file = await add_file(request, gateway)
    return JSONResponse(file_object(file, base_url(request, gateway.settings)), 201)


@_router.get("/files")
async def list_files(request: Request, gateway: TheGateway) -> Response:
    """The caller's files, newest first."""
    base = base_url(request, gateway.settings)
    return JSONResponse(page_object(*(file_object(file, base) for file in gateway.files.all())))


@_router.get("/files/{file_id}")
async def get_file(request: Request, gateway: TheGateway, file_id: str) -> Response:
    """What is known of a file."""
    file = gateway.files.get(file_id)
    if file is None:
        raise NotFoundError(f"there is no file {file_id[:100]}")
    return JSONResponse(file_object(file, base_url(request, gateway.settings)))


@_router.delete("/files/{file_id}")
async def delete_file(gateway: TheGateway, file_id: str) -> Response:
    """Forget a file."""
    if not gateway.files.delete(file_id):
        raise NotFoundError(f"there is no file {file_id[:100]}")
    return Response(status_code=204)


@_router.get("/models/{owner}/{name}")
async def get_model(request: Request, gateway: TheGateway, owner: str, name: str) -> Response:
    """The model with its version."""
    info = await _model(gateway, owner, name)
    return JSONResponse(model_object(info, base_url(request, gateway.settings), run_count=await gateway.store.count()))


@_router.get("/models/{owner}/{name}/versions")
async def list_versions(gateway: TheGateway, owner: str, name: str) -> Response:
    """The only version, as a page."""
    info = await _model(gateway, owner, name)
    return JSONResponse(page_object(version_object(info)))


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
    base = base_url(request, gateway.settings)
    prediction = Prediction(
        id=new_id(),
        model=info.name,
        version=info.version,
        input=with_files(info.without_nulls(body.input), gateway, info, base),
        created_at=now(),
        weights_digest=info.weights_digest,
        webhook=await webhook_of(body, gateway.settings),
    )
    live = await gateway.runner.start(prediction, CacheUse.of(request.headers))
    if seconds:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for would make a task
                await live.finished()
    shown = created_object(live.shown(), base)
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


async def stream_live(live: LivePrediction, position: Position) -> AsyncIterator[bytes]:
    """The events of a prediction that runs, from a position to the end."""
    loop, start = asyncio.get_running_loop(), _unix(live.snapshot())
    quiet_at = loop.time() + QUIET_SECONDS
    while True:
        if events := live.events_after(position):
            position = events[-1].position
            yield b"".join(_encode(event, start) for event in events)
            if isinstance(events[-1], Finished):
                return
        else:
            try:
                async with asyncio.timeout_at(quiet_at):
                    await live.changed()
                continue
            except TimeoutError:
                yield b": waiting\n\n"
        quiet_at = loop.time() + QUIET_SECONDS


async def stream_kept(prediction: Prediction, position: Position) -> AsyncIterator[bytes]:
    """The events of a prediction that has ended."""
    start = _unix(prediction)
    for event in events_between(position, pieces_of(prediction.output), prediction.logs[position.logs :]):
        position = event.position
        yield _encode(event, start)
    yield _encode(Finished(prediction, position), start)


def _encode(event: PredictionEvent, start: int) -> bytes:
    event_id = f"{start}:{event.position.output}-{event.position.logs}"
    match event:
        case OutputPiece(value=value):
            return _server_sent("output", value if isinstance(value, str) else json.dumps(value), event_id)
        case LogText(text=text):
            return _server_sent("logs", text, event_id)
        case Finished(prediction=prediction):
            done = _server_sent("done", json.dumps(_REASONS.get(prediction.status, {})), event_id)
            if prediction.status is Status.FAILED:
                return _server_sent("error", json.dumps({"detail": prediction.error}), event_id) + done
            return done


def _server_sent(name: str, data: str, event_id: str) -> bytes:
    """An event as it is sent. A text with line ends becomes several data lines, as the standard asks."""
    # Every kind of line end would end the field, so each one is normalized.
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    body = "".join(f"data: {line}\n" for line in lines)
    return f"event: {name}\nid: {event_id}\n{body}\n".encode()


def _unix(prediction: Prediction) -> int:
    return int(datetime.fromisoformat(prediction.created_at).timestamp())


REPLICATE = Api(
    _router,
    prefixes=tuple(f"/v1/{name}" for name in ("predictions", "models/", "deployments", "webhooks/", *_OTHER)),
    render_error=render_problem,
    open=open_webhooks,
)
