"""Files of Replicate's API: a form with one, the objects that show it, and predictions' inputs that name one."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.message
import email.policy
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pydantic_core
from fastapi import Request
from pydantic import JsonValue

from gateway.errors import BadRequestError, InvalidInputError
from gateway.gateway import Gateway
from gateway.http.bodies import read_bytes
from gateway.predictions.input_files import KEEP_SECONDS, InputFile
from gateway.predictions.prediction import ID_LENGTH, timestamp
from gateway.upstream.model_info import ModelInfo

_ADDRESS: Final = re.compile(rf"(https?://[^/?#\s]+)/v1/files/([a-z0-9]{{{ID_LENGTH}}})")
_FORM_BYTES: Final = 64 << 10  # of a form besides its file


async def add_file(request: Request, gateway: Gateway) -> InputFile:
    """Keep the file of a form: the part `content`, and perhaps `metadata`, which is a JSON object.

    Raises:
        BodyTooLargeError, BodyTimeoutError: the form is too large or arrives too slowly.
        BadRequestError: it is no form with a file.
        TooManyFilesError: the caller's files would be over the limit.
    """
    body = await read_bytes(request, max_bytes=gateway.settings.max_body_bytes + _FORM_BYTES)
    parts = await asyncio.to_thread(_read_form, request.headers.get("content-type", ""), body)
    part = parts.get("content")
    if part is None:
        raise BadRequestError("content: send a form (multipart/form-data) whose part `content` is the file")
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        raise BadRequestError(f"content: a file of the type {part.get_content_type()[:80]} cannot be read from a form")
    described = parts["metadata"].get_payload(decode=True) if "metadata" in parts else b"{}"
    metadata: JsonValue = None
    if isinstance(described, bytes):
        with contextlib.suppress(ValueError):
            metadata = pydantic_core.from_json(described, allow_inf_nan=False)
    if not isinstance(metadata, dict):
        raise BadRequestError("metadata: it is not a JSON object")
    return gateway.files.add((part.get_filename() or "file")[:255], part.get_content_type(), content, metadata)


def _read_form(content_type: str, body: bytes) -> dict[str, email.message.Message]:
    """The parts of a form by name."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    form = email.message_from_bytes(head + body, policy=email.policy.compat32)
    parts = form.get_payload()
    if form.get_content_type() != "multipart/form-data" or not isinstance(parts, list):
        return {}
    found = [part for part in parts if isinstance(part, email.message.Message)]
    return {str(part.get_param("name", "", "content-disposition")): part for part in found}


def file_object(file: InputFile, base: str) -> dict[str, JsonValue]:
    """A file as Replicate's API shows it."""
    return {
        "id": file.id,
        "name": file.name,
        "content_type": file.content_type,
        "size": len(file.content),
        "etag": file.sha256,
        "checksums": {"sha256": file.sha256},
        "metadata": file.metadata,
        "created_at": _time(file.created),
        "expires_at": _time(file.created + KEEP_SECONDS),
        "urls": {"get": f"{base}/v1/files/{file.id}"},
    }


def with_files(inputs: Mapping[str, Any], gateway: Gateway, info: ModelInfo, base: str) -> dict[str, Any]:
    """The inputs, in which a file stands in place of its address: its text, or for an input of a file, a data: URL.

    Raises:
        InvalidInputError: a file of this gateway has expired, or it is no text and the input is one.
    """
    return {
        name: [_content(name, one, gateway, info, base) for one in value]
        if isinstance(value, list)
        else _content(name, value, gateway, info, base)
        for name, value in inputs.items()
    }


def _content(name: str, value: Any, gateway: Gateway, info: ModelInfo, base: str) -> Any:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    file = gateway.files.get(match[2])
    if file is None:
        if match[1] != base:
            return value  # of another server
        text = f"there is no file {match[2]}; files expire after a day, and when the gateway stops"
        raise InvalidInputError.at(("input", name), text, "file")
    schema = info.input_properties.get(name, {})
    if "uri" in (schema.get("format"), schema.get("items", {}).get("format")):
        return file.data_url
    try:
        return file.content.decode()
    except UnicodeDecodeError as error:
        text = f"the file {file.name!r} is not text in UTF-8, and this input is a text"
        raise InvalidInputError.at(("input", name), text, "file") from error


def _time(seconds: float) -> str:
    return timestamp(datetime.fromtimestamp(seconds, UTC))
