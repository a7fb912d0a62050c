"""The Model Context Protocol over HTTP, as far as a server of tools needs it: no sessions, one answer to each POST."""

from __future__ import annotations

from typing import Final

import pydantic_core
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from gateway.errors import GatewayError, InvalidInputError
from gateway.gateway import Gateway, TheGateway
from gateway.http.api import Api
from gateway.http.bodies import read_bytes
from gateway.mcp.tool import Object, error_result, result_object, tool_name, tool_object
from gateway.openai.choices import run_choices
from gateway.openai.error_objects import ApiError
from gateway.openai.model_inputs import ModelInputs

# Newer versions have no `initialize`; their clients ask with an older one when a server does not know theirs.
VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
_PARSE, _REQUEST, _METHOD, _PARAMS, _INTERNAL, _VERSION = -32700, -32600, -32601, -32602, -32603, -32022
_router = APIRouter()


class _Message(BaseModel):
    """A message of JSON-RPC; without an id nobody waits for an answer, and without a method it is an answer."""

    model_config = ConfigDict(strict=True, frozen=True)

    jsonrpc: str
    method: str | None = None
    id: int | str | None = None
    params: dict[str, JsonValue] = {}


class _CallParams(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    name: str
    arguments: dict[str, JsonValue] = {}


class _RpcError(GatewayError):
    """An error with a code of JSON-RPC."""

    def __init__(
        self, detail: str, code: int, own_id: JsonValue = None, status: int = 200, data: JsonValue = None
    ) -> None:
        super().__init__(detail)
        self.code, self.own_id, self.status, self.data = code, own_id, status, data


@_router.post("/mcp")
async def take_message(request: Request, gateway: TheGateway) -> Response:
    """Answer one message; what needs no answer is accepted."""
    message = await _read(request, gateway)
    if message.method is None or message.id is None:
        return Response(status_code=202)
    version = request.headers.get("mcp-protocol-version")
    if version is not None and version not in VERSIONS:
        text = f"the protocol's version {version[:40]!r} is not supported here; {', '.join(VERSIONS)} are"
        data: JsonValue = {"supported": [*VERSIONS], "requested": version[:40]}
        raise _RpcError(text, _VERSION, message.id, 400, data)
    result = await _answer(request, gateway, message)
    return JSONResponse({"jsonrpc": "2.0", "id": message.id, "result": result})


async def _read(request: Request, gateway: Gateway) -> _Message:
    content = await read_bytes(request, max_bytes=gateway.settings.max_body_bytes)
    try:
        value = pydantic_core.from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise _RpcError(f"the body is not JSON: {error}", _PARSE, status=400) from error
    try:
        message = _Message.model_validate(value)
    except ValidationError as error:
        raise _RpcError(f"the body is no message of JSON-RPC: {_first(error)}", _REQUEST, status=400) from error
    if message.jsonrpc != "2.0":
        raise _RpcError("jsonrpc: only '2.0' is supported here", _REQUEST, message.id, 400)
    return message


async def _answer(request: Request, gateway: Gateway, message: _Message) -> Object:
    match message.method:
        case "initialize":
            wanted = message.params.get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": gateway.settings.model, "version": (await gateway.model.read()).version[:12]},
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [tool_object(await gateway.model.read())]}
        case "tools/call":
            try:
                params = _CallParams.model_validate(message.params)
            except ValidationError as error:
                raise _RpcError(f"params.{_first(error)}", _PARAMS, message.id) from error
            return await _call(request, gateway, message, params)
    raise _RpcError(f"the method {str(message.method)[:80]!r} is not known here", _METHOD, message.id)


async def _call(request: Request, gateway: Gateway, message: _Message, params: _CallParams) -> Object:
    """The result of a call. It is cancelled when the client disconnects."""
    info = await gateway.model.read()
    if params.name != tool_name(info):
        text = f"there is no tool {params.name[:80]!r}; {tool_name(info)!r} is one"
        raise _RpcError(text, _PARAMS, message.id)
    try:
        info.check_names(params.arguments)
        values = info.without_nulls(params.arguments)
        inputs = ModelInputs(info.input_properties, values, {name: name for name in values})
        async with run_choices(request, gateway, info, [inputs], 1) as choices:
            return result_object(await choices.predictions[0].finished(), info)
    except (ApiError, InvalidInputError) as error:
        return error_result(error.detail)  # the model that calls can correct its arguments


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"


def _render_error(request: Request, error: GatewayError) -> Response:
    """The answer for an error, in JSON-RPC's shape."""
    code = _INTERNAL if error.status >= 500 else _REQUEST
    own_id, data = None, None
    if isinstance(error, _RpcError):
        code, own_id, data = error.code, error.own_id, error.data
    shown: Object = {"code": code, "message": error.detail}
    if data is not None:
        shown["data"] = data
    return JSONResponse({"jsonrpc": "2.0", "id": own_id, "error": shown}, error.status)


MCP = Api(_router, ("/mcp",), _render_error)
