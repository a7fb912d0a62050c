"""A client of one Cog server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import JsonValue

from gateway.errors import DoorError, FieldError, InvalidInputError
from gateway.event_stream import ServerSentEvent, read_events

# Also when Cog's parser refuses what the door's accepts, such as 1e999: the server is well, so it must not be ejected.
_CALLERS_FAULT = (400, 413, 415, 422)
_TIMEOUT = httpx.Timeout(10, read=None, pool=None)  # an answer may take any time


class UpstreamBusyError(Exception):
    """All slots of the server are taken."""


class UpstreamError(Exception):
    """The server cannot be reached, has ended, or answered something unexpected."""


@dataclass(frozen=True, slots=True)
class UpstreamEvent:
    """One event of a prediction's stream.

    Args:
        name: start, output, log, metric or completed.
        data: as Cog sends it.
    """

    name: str
    data: Mapping[str, JsonValue]


class Upstream:
    """One Cog server.

    Args:
        url: its address without a path.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        # No proxy from the environment: the servers are our own.
        self._client = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, limits=limits, trust_env=False)

    @asynccontextmanager
    async def predict(
        self, prediction_id: str, inputs: Mapping[str, JsonValue]
    ) -> AsyncIterator[AsyncIterator[UpstreamEvent]]:
        """Start a prediction; its events follow. Leaving the context before the end cancels it on the server.

        Raises:
            UpstreamBusyError: all slots are taken.
            InvalidInputError: the inputs are not what the model's schema asks.
            UpstreamError: anything else that is wrong with the server; also while the events are read.
        """
        try:
            async with self._client.stream(
                "PUT",
                f"/predictions/{prediction_id}",
                json={"id": prediction_id, "input": inputs},
                headers={"Accept": "text/event-stream"},
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response.status_code, await response.aread())
                yield _parsed(read_events(response.aiter_bytes()))
        except httpx.HTTPError as error:
            raise UpstreamError(f"{type(error).__name__} {error}".rstrip()) from error

    async def cancel(self, prediction_id: str) -> bool:
        """Ask the server to cancel; whether it knew the prediction.

        Raises:
            UpstreamError: it cannot be reached.
        """
        response = await self._ask("POST", f"/predictions/{prediction_id}/cancel")
        return response.status_code == httpx.codes.OK

    async def health(self) -> str:
        """Its status: STARTING, READY, BUSY, UNHEALTHY, SETUP_FAILED or DEFUNCT.

        Raises:
            UpstreamError: it cannot be reached.
        """
        return str(_json(await self._ask("GET", "/health-check")).get("status"))

    async def openapi(self) -> dict[str, Any]:
        """The model's OpenAPI schema.

        Raises:
            UpstreamError: it cannot be reached, or has none.
        """
        return _json(await self._ask("GET", "/openapi.json"))

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def _ask(self, method: str, path: str) -> httpx.Response:
        try:
            return await self._client.request(method, path, timeout=10)
        except httpx.HTTPError as error:
            raise UpstreamError(f"{type(error).__name__} {error}".rstrip()) from error


async def _parsed(events: AsyncIterator[ServerSentEvent]) -> AsyncIterator[UpstreamEvent]:
    async for event in events:
        try:
            data = json.loads(event.data)
        except ValueError as error:
            raise UpstreamError(f"event {event.name} is not JSON: {error}") from error
        yield UpstreamEvent(event.name, data)


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError as error:
        raise UpstreamError(f"{response.url.path} did not answer JSON: {error}") from error
    if not isinstance(content, dict):
        raise UpstreamError(f"{response.url.path} did not answer an object")
    return content


def _refusal(status: int, body: bytes) -> Exception:
    """The error that an answer other than 200 stands for."""
    if status == httpx.codes.CONFLICT:
        return UpstreamBusyError()
    if status in _CALLERS_FAULT:
        return _invalid_input(body)
    return UpstreamError(f"answered {status}: {body[:500].decode(errors='replace')}")


def _invalid_input(body: bytes) -> DoorError:
    """Cog lists the wrong inputs as {"detail": [{"loc": ["body", "input", NAME], "msg", "type"}]}."""
    try:
        details = json.loads(body)["detail"]
        fields = tuple(
            FieldError(tuple(map(str, item["loc"][1:])), item["msg"], item["type"].removeprefix("value_error."))
            for item in details
        )
    except (ValueError, KeyError, TypeError):
        text = body[:500].decode(errors="replace")
        return InvalidInputError(f"- input: {text}", fields=(FieldError(("input",), text),))
    return InvalidInputError.of(fields)
