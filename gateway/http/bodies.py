"""Reads request bodies within limits of size and time, and checks them; errors name the field that is wrong."""

from __future__ import annotations

import asyncio
import math
from typing import Final, TypeVar

import pydantic_core
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from gateway.errors import BadRequestError, BodyTimeoutError, BodyTooLargeError, FieldError, InvalidInputError

BODY_SECONDS: Final = 30.0  # for the whole body
_Body = TypeVar("_Body", bound=BaseModel)


async def read_body(request: Request, shape: type[_Body], *, max_bytes: int) -> _Body:
    """The request's body as an object of a pydantic model.

    Raises:
        BodyTooLargeError, BodyTimeoutError: the body is too large or arrives too slowly.
        BadRequestError: the body is not JSON.
        InvalidInputError: the body has other fields or values than the model.
    """
    content = await read_bytes(request, max_bytes=max_bytes)
    try:
        # It refuses NaN, lone surrogates and deep nesting, which Python's json accepts or fails on.
        value = pydantic_core.from_json(content, allow_inf_nan=False)
        _check_finite(value)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise InvalidInputError.of(tuple(_field_errors(error))) from error


async def read_bytes(request: Request, *, max_bytes: int) -> bytes:
    """The request's body.

    Raises:
        BodyTooLargeError, BodyTimeoutError: the body is too large or arrives too slowly.
        BadRequestError: the connection ended before the body did.
    """
    text = f"the limit is {max_bytes:,} bytes"
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated[:20]) > max_bytes:
        raise BodyTooLargeError(f"the body has {int(stated[:20]):,} bytes; {text}")
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                content += part
                if len(content) > max_bytes:
                    raise BodyTooLargeError(f"the body is larger than the gateway accepts; {text}")
    except ClientDisconnect as error:
        raise BadRequestError("the connection ended before the body did") from error
    except TimeoutError as error:
        raise BodyTimeoutError(f"the body was not complete after {BODY_SECONDS:.0f} seconds") from error
    return bytes(content)


def _check_finite(value: object) -> None:
    """Refuse infinities: 1e999 is valid JSON, but becomes one, which cannot be written as JSON again.

    Raises:
        ValueError: some number is infinite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large for a 64-bit float")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(part)


def _field_errors(error: ValidationError) -> list[FieldError]:
    return [
        FieldError(tuple(map(str, one["loc"])), one["msg"].removeprefix("Value error, "), one["type"])
        for one in error.errors(include_url=False, include_input=False)
    ]
