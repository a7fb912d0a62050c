"""The routes of OpenAI's HTTP API."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from gateway.errors import GatewayError
from gateway.gateway import Gateway, TheGateway
from gateway.http.api import Api
from gateway.http.bodies import read_body
from gateway.openai.choices import Answer, Choices, Piece, run_choices, usage_object
from gateway.openai.error_objects import ApiError, error_object, render_error
from gateway.openai.model_inputs import ModelInputs, chat_inputs, completion_inputs
from gateway.openai.request_bodies import ChatBody, CompletionBody, SharedBody
from gateway.openai.shapes import ChatShape, CompletionShape, Envelope, Shape, encode_chunk, model_object
from gateway.replicate.objects import base_url, page_object
from gateway.replicate.objects import model_object as replicate_model
from gateway.upstream.model_info import ModelInfo

_DONE: Final = b"data: [DONE]\n\n"
_router = APIRouter(prefix="/v1")


@dataclass(frozen=True, slots=True)
class _Call:
    """One request that has been checked."""

    request: Request
    gateway: Gateway  # as the caller may use it
    info: ModelInfo
    body: SharedBody
    inputs: Sequence[ModelInputs]  # for each prompt
    make_shape: Callable[[str], Shape]  # from the answer's id

    @property
    def n(self) -> int:
        """The number of answers to each prompt."""
        return self.body.n or 1


@_router.post("/chat/completions")
async def create_chat_completion(request: Request, gateway: TheGateway) -> Response:
    """The model's answer to a conversation."""
    body = await read_body(request, ChatBody, max_bytes=gateway.settings.max_body_bytes)
    info = await _check(gateway, body)
    inputs = chat_inputs(body, info)
    return await _answer(_Call(request, gateway, info, body, [inputs], lambda own_id: ChatShape(body.reader, own_id)))


@_router.post("/completions")
async def create_completion(request: Request, gateway: TheGateway) -> Response:
    """The model's continuation of a prompt, or of several."""
    body = await read_body(request, CompletionBody, max_bytes=gateway.settings.max_body_bytes)
    info = await _check(gateway, body)
    inputs = [completion_inputs(body, info, prompt) for prompt in body.prompts]
    return await _answer(_Call(request, gateway, info, body, inputs, lambda own_id: CompletionShape()))


@_router.get("/models")
async def list_models(request: Request, gateway: TheGateway) -> Response:
    """The only model, as a list of OpenAI's and as a page of Replicate's, whose clients ask the same path."""
    info = await gateway.model.read()
    shown = replicate_model(info, base_url(request, gateway.settings), run_count=await gateway.store.count())
    return JSONResponse({"object": "list", "data": [model_object(info)], **page_object(shown)})


@_router.get("/models/{model_id}")
async def get_one_model(request: Request, gateway: TheGateway, model_id: str) -> Response:
    """The model, if the id is its name."""
    try:
        info = await gateway.model.read()
        check_model(model_id, info)
    except GatewayError as error:
        return render_error(request, error)  # this path's other errors are Replicate's
    return JSONResponse(model_object(info))


async def _check(gateway: Gateway, body: SharedBody) -> ModelInfo:
    for param, fault in body.faults().items():
        raise ApiError(f"{param}: {fault}", param=param)
    info = await gateway.model.read()
    check_model(body.model, info)
    return info


def check_model(model: str, info: ModelInfo) -> None:
    """Refuse other models than the one that is served.

    Raises:
        ApiError: it is another one.
    """
    name = info.name.partition("/")[2]
    if model not in (name, info.name):
        message = f"the model {model[:100]!r} is not served here; {name!r} is"
        raise ApiError(message, param="model", code="model_not_found", status=404)


async def _answer(call: _Call) -> Response:
    if not call.body.stream:
        async with run_choices(call.request, call.gateway, call.info, call.inputs, call.n) as choices:
            answers = await choices.answers()
            shape, envelope = _begin(call, choices)
            whole = [shape.whole(index, answer) for index, answer in enumerate(answers)]
            return JSONResponse(envelope.around(shape.name, whole, usage=usage_object(answers, call.n)))
    return await streamed(_stream(call))


async def streamed(events: AsyncIterator[bytes]) -> Response:
    """An answer that is a stream of events; what fails before the first event has a status of its own."""
    first = await anext(events, b"")

    async def content() -> AsyncIterator[bytes]:
        yield first
        async for event in events:
            yield event

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(content(), headers=headers, media_type="text/event-stream")


def _begin(call: _Call, choices: Choices) -> tuple[Shape, Envelope]:
    own_id = choices.predictions[0].id
    shape = call.make_shape(own_id)
    envelope = Envelope(shape.prefix + own_id, int(time.time()), call.body.model, f"fp_{call.info.version[:10]}")
    return shape, envelope


async def _stream(call: _Call) -> AsyncIterator[bytes]:
    """The chunks of an answer as they come.

    Raises:
        ApiError: a prediction failed before the first chunk; a later failure is the last chunk.
    """
    async with run_choices(call.request, call.gateway, call.info, call.inputs, call.n) as choices:
        shape, envelope = _begin(call, choices)
        no_usage = {"usage": None} if call.body.includes_usage else {}
        answers: dict[int, Answer] = {}
        begun: set[int] = set()
        try:
            async for event in choices.follow():
                # In the order of their numbers: OpenAI's Python client fails if a later choice begins first.
                beginning = [index for index in range(event.index + 1) if index not in begun]
                parts = [shape.first(index) for index in beginning]
                begun.update(beginning)
                if isinstance(event, Piece):
                    parts.append(shape.piece(event.index, event.text))
                else:
                    answers[event.index] = event.answer
                    parts.append(shape.last(event.index, event.answer))
                for part in parts:
                    if part is not None:
                        yield encode_chunk(envelope.around(shape.chunk_name, [part], **no_usage))
        except ApiError as error:
            if not begun:
                raise
            yield encode_chunk(error_object(error))
            yield _DONE
            return
        if call.body.includes_usage:
            usage = usage_object([answers[index] for index in sorted(answers)], call.n)
            yield encode_chunk(envelope.around(shape.chunk_name, [], usage=usage))
        yield _DONE


OPENAI = Api(_router, ("/v1/chat", "/v1/completions", "/v1/models"), render_error)
