"""What answers the gateway's predictions: the interface of a model server, and the client of one Cog server."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from errno import ECONNREFUSED
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import aiohttp
import certifi
from pydantic import JsonValue
from yarl import URL

from gateway.errors import FieldError, GatewayError, InvalidInputError

# Also when Cog's parser refuses what the gateway's accepts, such as 1e999: the server is well, so it is not ejected.
_CALLERS_FAULT = (400, 413, 415, 422)
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=10)  # an answer may take any time
_DUMPS = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # a body has limits
_TIMEOUT_OF_SMALL = aiohttp.ClientTimeout(total=10)
# A server of this project answers a prediction whose context has the one with a check, and its metrics have the other.
CHECK = "check_answer"
CHECKED = "checked_answer"
# A package's own health check takes at most 3 seconds. Cog answers after 10 where its worker is stopped.
HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=3.8)


class UpstreamBusyError(Exception):
    """All slots of the server are taken."""


class UpstreamError(Exception):
    """The server cannot be reached, has ended, or answered something unexpected."""


class UpstreamClosedError(UpstreamError):
    """Nothing listens at its address: it has ended, or takes no more predictions and finishes those that it has."""


@dataclass(frozen=True, slots=True)
class UpstreamEvent:
    """One event of a prediction's stream.

    Args:
        name: the kind of event: start, output, log, metric or completed.
        data: what the event carries, as Cog sends it.
    """

    name: str
    data: Mapping[str, JsonValue]


class ModelServer(Protocol):
    """What answers predictions: a Cog server, or something that behaves as one. To be made in its event loop."""

    url: str
    """The server's address, which is different for each."""
    name: str
    """The server's address as it may be shown."""

    def predict(
        self, prediction_id: str, inputs: Mapping[str, JsonValue], context: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[UpstreamEvent]]:
        """Start a prediction; its events follow. Leaving the context before the end cancels it on the server.

        Args:
            prediction_id: the prediction's id, which the server takes as well.
            inputs: the inputs by names of predict's parameters.
            context: W3C's `traceparent`, or nothing; with `CHECK`, the text of an answer that the server only checks.

        Raises:
            UpstreamBusyError: all slots are taken.
            InvalidInputError: the inputs are not what the model's schema asks.
            UpstreamError: anything else that is wrong with the server; also while the events are read.
        """
        ...

    async def cancel(self, prediction_id: str) -> bool:
        """Ask the server to cancel; whether it knew the prediction.

        Raises:
            UpstreamError: the server cannot be reached.
        """
        ...

    async def health(self) -> str:
        """The server's status: STARTING, READY, BUSY, UNHEALTHY, SETUP_FAILED or DEFUNCT.

        Raises:
            UpstreamClosedError: the server does not listen.
            UpstreamError: the server cannot be reached.
        """
        ...

    async def openapi(self) -> dict[str, Any]:
        """The model's OpenAPI schema.

        Raises:
            UpstreamError: the server cannot be reached, or has none.
        """
        ...

    async def close(self) -> None:
        """Close the connections to the server."""
        ...


class Upstream:
    """The client of one Cog server, by the server's address without a path."""

    def __init__(self, url: str) -> None:
        self.url = url
        address = URL(f"{url.rstrip('/')}/")
        self.name = str(address.with_user(None)).rstrip("/")
        """The server's address without user and password, which may be shown."""
        trusted = ssl.create_default_context(cafile=certifi.where()) if address.scheme == "https" else True
        self._session = aiohttp.ClientSession(
            address.with_user(None),
            headers=_authorization(address),
            json_serialize=_DUMPS,
            timeout=_TIMEOUT,
            connector=aiohttp.TCPConnector(limit=0, ssl=trusted, resolver=aiohttp.ThreadedResolver()),
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(_send_once,),
            trust_env=False,  # no proxy from the environment: the servers are our own
        )

    @asynccontextmanager
    async def predict(
        self, prediction_id: str, inputs: Mapping[str, JsonValue], context: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[UpstreamEvent]]:
        """See `ModelServer.predict`.

        As headers, the trace context is for Cog's own tracing. Cog gives headers to no predict(), so it is in the body
        as well, from where predict() gets it.
        """
        body = {"id": prediction_id, "input": inputs} | ({"context": context} if context else {})
        traced = {name: value for name, value in context.items() if name != CHECK}
        headers = {"Accept": "text/event-stream", **traced}
        try:
            # Leaving this context before the end of the answer closes the connection.
            async with self._session.put(
                f"predictions/{prediction_id}", json=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status != HTTPStatus.OK:
                    raise _refusal(response.status, await response.read())
                _acknowledge_at_once(response)
                yield _events(response.content.iter_any())
        except aiohttp.ClientError as error:
            raise _broken(error) from error

    @asynccontextmanager
    async def ask_raw(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Pass on a request in Cog's protocol; leaving the context before the end of the answer closes the connection.

        Raises:
            UpstreamError: the server cannot be reached.
        """
        try:
            async with self._session.request(
                method, path.lstrip("/"), headers=headers, data=body or None, allow_redirects=False
            ) as response:
                _acknowledge_at_once(response)
                yield response
        except aiohttp.ClientError as error:
            raise _broken(error) from error

    async def cancel(self, prediction_id: str) -> bool:
        """See `ModelServer.cancel`."""
        status, _ = await self._ask("POST", f"predictions/{prediction_id}/cancel")
        return status == HTTPStatus.OK

    async def health(self) -> str:
        """See `ModelServer.health`."""
        return str((await self._ask_json("health-check", HEALTH_TIMEOUT)).get("status"))

    async def openapi(self) -> dict[str, Any]:
        """See `ModelServer.openapi`."""
        return await self._ask_json("openapi.json")

    async def close(self) -> None:
        """See `ModelServer.close`."""
        await self._session.close()

    async def _ask(
        self, method: str, path: str, timeout: aiohttp.ClientTimeout = _TIMEOUT_OF_SMALL
    ) -> tuple[int, bytes]:
        try:
            async with self._session.request(method, path, timeout=timeout, allow_redirects=False) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _broken(error) from error

    async def _ask_json(self, path: str, timeout: aiohttp.ClientTimeout = _TIMEOUT_OF_SMALL) -> dict[str, Any]:
        _, body = await self._ask("GET", path, timeout)
        try:
            content = json.loads(body)
        except ValueError as error:
            raise UpstreamError(f"/{path} did not answer JSON: {error}") from error
        if not isinstance(content, dict):
            raise UpstreamError(f"/{path} did not answer an object")
        return content


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Middleware that sends a request once: aiohttp would repeat a PUT if the server broke off before its answer."""
    try:
        return await handler(request)
    except aiohttp.ClientError as error:
        raise _broken(error) from error


def _broken(error: Exception) -> UpstreamError:
    """The error of a broken connection in words for a caller, who is not to learn the server's address."""
    match error:
        case aiohttp.ClientConnectorError(errno=number) if number == ECONNREFUSED:
            return UpstreamClosedError("nothing listens at its address")
        case TimeoutError():
            return UpstreamError("no answer in time")
        case aiohttp.ClientConnectorError():
            return UpstreamError(f"it cannot be reached: {error.strerror or 'no connection'}")
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | aiohttp.ClientOSError():
            return UpstreamError("it closed the connection before its answer ended")
    return UpstreamError("its answer is not HTTP as it should be")


def _authorization(address: URL) -> dict[str, str]:
    """The header for an address with user and password."""
    if address.user is None and address.password is None:
        return {}
    return {"Authorization": aiohttp.encode_basic_auth(address.user or "", address.password or "")}


def _acknowledge_at_once(response: aiohttp.ClientResponse) -> None:
    """Do not let the kernel delay the acknowledgements of the body.

    Cog's server leaves Nagle's algorithm on: it holds an event back until the one before it has been acknowledged.
    Linux delays that by up to 40 ms, because a connection that has just sent a request may soon send another.
    TCP_QUICKACK ends this until the next request.
    """
    transport = response.connection and response.connection.transport
    raw: Any = transport and transport.get_extra_info("socket")
    if raw is not None and hasattr(socket, "TCP_QUICKACK"):  # Linux only
        with suppress(OSError):  # closed meanwhile
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[UpstreamEvent]:
    """The server-sent events of a stream of UTF-8; comments and unknown fields are skipped."""
    rest, name, data = bytearray(), "message", list[str]()
    async for chunk in chunks:
        rest += chunk
        if b"\n" not in chunk:
            continue
        # Only LF and CR LF end a line: JSON may have other separators, such as U+2028, unescaped.
        *lines, rest = rest.split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode(errors="replace")
            key, _, value = line.partition(":")
            if key == "event":
                name = value.removeprefix(" ") or "message"
            elif key == "data":
                data.append(value.removeprefix(" "))
            elif not line:
                if data:
                    yield _event(name, "\n".join(data))
                name, data = "message", []


def _event(name: str, data: str) -> UpstreamEvent:
    try:
        return UpstreamEvent(name, json.loads(data))
    except ValueError as error:
        raise UpstreamError(f"event {name} is not JSON: {error}") from error


def _refusal(status: int, body: bytes) -> Exception:
    """The error that an answer other than 200 stands for."""
    if status == HTTPStatus.CONFLICT:
        return UpstreamBusyError()
    if status in _CALLERS_FAULT:
        return _invalid_input(body)
    return UpstreamError(f"answered {status}: {body[:500].decode(errors='replace')}")


def _invalid_input(body: bytes) -> GatewayError:
    """The error of wrong inputs, which Cog lists as {"detail": [{"loc": ["body", "input", NAME], "msg", "type"}]}."""
    try:
        details = json.loads(body)["detail"]
        fields = tuple(
            FieldError(tuple(map(str, item["loc"][1:])), item["msg"], item["type"].removeprefix("value_error."))
            for item in details
        )
    except (ValueError, KeyError, TypeError):
        text = body[:500].decode(errors="replace")
        return InvalidInputError.at(("input",), text)
    return InvalidInputError.of(fields)
