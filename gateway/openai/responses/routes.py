"""The routes of OpenAI's Responses API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import JsonValue

from gateway.cache.answer_cache import CacheUse
from gateway.errors import NotFoundError
from gateway.gateway import Gateway, TheGateway
from gateway.http.api import Api
from gateway.http.bodies import read_body
from gateway.openai.choices import Choices, Piece, run_choices, start_prediction
from gateway.openai.error_objects import ApiError, render_error
from gateway.openai.model_inputs import ModelInputs, chat_inputs
from gateway.openai.responses.body import ResponsesBody, param_name, renamed
from gateway.openai.responses.items import REFERENCE, Item, Message, messages_of, read_items
from gateway.openai.responses.objects import PREFIX, Asked, Events, response_of_item
from gateway.openai.routes import check_model, streamed
from gateway.predictions.live_prediction import LivePrediction
from gateway.predictions.prediction import Prediction, new_id
from gateway.upstream.model_info import ModelInfo

_router = APIRouter(prefix="/v1/responses")


@_router.post("")
async def create_response(request: Request, gateway: TheGateway) -> Response:
    """The model's answer to an input."""
    body = await read_body(request, ResponsesBody, max_bytes=gateway.settings.max_body_bytes)
    for param, fault in body.faults().items():
        raise ApiError(f"{param}: {fault}", param=param)
    info = await gateway.model.read()
    check_model(body.model, info)
    given = [await _resolved(gateway, item) if item.get("type") == REFERENCE else item for item in body.input]
    items = read_items(given, new_id())
    earlier = [] if body.previous_response_id is None else await _conversation(gateway, body.previous_response_id)
    messages = [*messages_of([], body.instructions or None), *earlier, *messages_of(items)]
    inputs = _inputs(body, messages, info)
    if body.is_stored:
        inputs = replace(inputs, request={**body.kept, "input": [*items]})
    if body.stream:
        return await streamed(_events(body, _run(request, gateway, info, inputs, body)))
    async with _run(request, gateway, info, inputs, body) as choices:
        asked = Asked.of(choices.predictions[0].snapshot(), body)
        if body.background:
            return JSONResponse(asked.shown(choices.predictions[0].snapshot()))
        [answer] = await choices.answers()
        return JSONResponse(asked.whole(answer))


@_router.get("/{response_id}")
async def get_response(
    gateway: TheGateway, response_id: str, stream: bool = False, starting_after: int | None = None
) -> Response:
    """A stored response; with `stream` its events, after the number `starting_after` if that is given."""
    prediction, body = await _find(gateway, response_id)
    if not stream:
        return JSONResponse(Asked.of(prediction, body).shown(prediction))
    live = gateway.runner.find(prediction.id) or LivePrediction(prediction, max_bytes=0)
    choices = Choices([live], [ModelInputs({}, dict(prediction.input))])
    return await streamed(_events(body, contextlib.nullcontext(choices), starting_after))


@_router.delete("/{response_id}")
async def delete_response(gateway: TheGateway, response_id: str) -> Response:
    """Delete a stored response with its input; one that runs is cancelled first."""
    prediction, _ = await _find(gateway, response_id)
    await gateway.runner.delete(prediction.id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@_router.post("/{response_id}/cancel")
async def cancel_response(gateway: TheGateway, response_id: str) -> Response:
    """Cancel a response; one that has ended stays as it is."""
    prediction, body = await _find(gateway, response_id)
    live = gateway.runner.find(prediction.id)
    if live is not None:
        gateway.runner.cancel(prediction.id)
        prediction = await live.finished()
    return JSONResponse(Asked.of(prediction, body).shown(prediction))


@_router.get("/{response_id}/input_items")
async def list_input_items(
    gateway: TheGateway,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """A page of the items that the request had as input, without those of earlier responses."""
    _, body = await _find(gateway, response_id)
    items = body.input if order == "asc" else body.input[::-1]
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise ApiError(f"after: there is no item {after[:100]!r}", param="after")
    start = 0 if after is None else ids.index(after) + 1
    page = items[start : start + limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return JSONResponse({"object": "list", "data": page, **ends, "has_more": len(items) > start + limit})


def _inputs(body: ResponsesBody, messages: list[Message], info: ModelInfo) -> ModelInputs:
    """The model's inputs, of which errors name this API's parameters."""
    chat = body.chat_body(messages)
    for param, fault in chat.faults().items():
        raise ApiError(f"{param_name(param)}: {fault}", param=param_name(param))
    try:
        inputs = chat_inputs(chat, info)
    except ApiError as error:
        raise renamed(error) from error
    return replace(inputs, params={name: param_name(param) for name, param in inputs.params.items()})


async def _find(gateway: Gateway, response_id: str) -> tuple[Prediction, ResponsesBody]:
    prediction = None
    if response_id.startswith(PREFIX):
        prediction = await gateway.runner.get(response_id.removeprefix(PREFIX))
    if prediction is None or prediction.request is None:
        raise NotFoundError(f"there is no stored response {response_id[:100]!r}")
    return prediction, ResponsesBody.model_validate(prediction.request)


async def _resolved(gateway: Gateway, reference: Item) -> Item:
    """The item of a stored response's answer that a reference names by its id, as the AI SDK's turns do."""
    item_id = reference.get("id")
    try:
        prediction, body = await _find(gateway, response_of_item(str(item_id)))
    except NotFoundError as error:
        raise _no_item(item_id) from error
    output = Asked.of(prediction, body).shown(prediction)["output"]
    assert isinstance(output, list), "a response's output is a list"
    found = next((item for item in output if isinstance(item, dict) and item["id"] == item_id), None)
    if found is None:
        raise _no_item(item_id)
    return found


def _no_item(item_id: JsonValue) -> ApiError:
    text = f"input: there is no stored item {str(item_id)[:100]!r}; send the item itself"
    return ApiError(text, param="input", status=404)


async def _conversation(gateway: Gateway, response_id: str) -> list[Message]:
    """The messages of a stored response and of those before it, without instructions, which hold for one request."""
    param = "previous_response_id"
    try:
        prediction, body = await _find(gateway, response_id)
    except NotFoundError as error:
        raise ApiError(f"{param}: {error.detail}", param=param, code="previous_response_not_found") from error
    response = Asked.of(prediction, body).shown(prediction)
    if response["status"] not in ("completed", "incomplete"):
        raise ApiError(f"{param}: that response is {response['status']}, so it has no answer", param=param)
    messages = prediction.input.get("messages")
    if not isinstance(messages, list):
        raise ApiError(f"{param}: this model takes one text and no conversation", param=param)
    given = [message for message in messages if isinstance(message, dict)]
    output = response["output"]
    assert isinstance(output, list), "a response's output is a list"
    answer = messages_of(item for item in output if isinstance(item, dict))
    return [*given[1 if body.instructions else 0 :], *answer]


@asynccontextmanager
async def _run(
    request: Request, gateway: Gateway, info: ModelInfo, inputs: ModelInputs, body: ResponsesBody
) -> AsyncIterator[Choices]:
    """The prediction of a request. With `background` it goes on when the context ends and when the client leaves."""
    if body.background:
        yield Choices([await start_prediction(gateway, info, inputs, 0, CacheUse.of(request.headers))], [inputs])
        return
    async with run_choices(request, gateway, info, [inputs], 1) as choices:
        yield choices


async def _events(
    body: ResponsesBody, running: AbstractAsyncContextManager[Choices], starting_after: int | None = None
) -> AsyncIterator[bytes]:
    """The events of a response as they come.

    Raises:
        ApiError: the prediction failed before the first event; a later failure is an event.
    """
    async with running as choices:
        events = Events(Asked.of(choices.predictions[0].snapshot(), body), starting_after)
        if body.background:
            yield events.begin()  # the client can come back with the id
        try:
            async for event in choices.follow():
                written = b"" if events.has_begun else events.begin()
                written += events.piece(event.text) if isinstance(event, Piece) else events.end(event.answer)
                if written:
                    yield written
        except ApiError as error:
            if not events.has_begun:
                raise
            yield events.fail(error)


RESPONSES = Api(_router, ("/v1/responses",), render_error)
