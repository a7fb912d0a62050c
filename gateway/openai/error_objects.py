"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import JsonValue

from gateway.errors import GatewayError

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(GatewayError):
    """An error with the parts that OpenAI's clients read.

    Args:
        detail: one sentence for people.
        param: the request's parameter that is wrong.
        code: a word for programs.
        status: the HTTP status of the answer.
        retry_after: seconds after which the same request may succeed.
    """

    def __init__(
        self,
        detail: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.param = param
        self.code = code
        self.status = status


def render_error(request: Request, error: GatewayError) -> Response:
    """The answer for an error. Clients retry 408, 409, 429 and from 500 on, and no other status."""
    return JSONResponse(error_object(error), 400 if error.status == 422 else error.status)


def error_object(error: GatewayError) -> dict[str, JsonValue]:
    """The error as JSON; in a stream it takes the place of a chunk."""
    param, code, message = None, None, error.detail
    if isinstance(error, ApiError):
        param, code = error.param, error.code
    elif error.fields:
        field = error.fields[0]
        param = _place(field.path)
        message = f"{'.'.join(field.path) or 'body'}: {field.message}"
        if field.kind == "extra_forbidden":
            param = _exact_place(field.path)
            code, message = "unknown_parameter", f"unknown parameter: {param!r}; remove it"
            if param.startswith("guided_"):
                message += ", and use response_format"
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _place(path: tuple[str, ...]) -> str | None:
    """The parameter and, in a list, the number: ("messages", "0", "role") is `messages[0]`."""
    if not path:
        return None
    return (path[0] + (f"[{path[1]}]" if len(path) > 1 and path[1].isdecimal() else ""))[:200]


def _exact_place(path: tuple[str, ...]) -> str:
    """The whole path: ("tools", "0", "function", "x") is `tools[0].function.x`."""
    steps = (f"[{step}]" if step.isdecimal() else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")[:200]
