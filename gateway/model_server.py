"""The interface of what answers the gateway's predictions: a Cog server, or something that behaves as one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from pydantic import JsonValue

from gateway.upstream import UpstreamEvent


class ModelServer(Protocol):
    """See `gateway.upstream.Upstream`, which is a client of a Cog server. To be made in the event loop that uses it."""

    url: str
    """Its address, which is different for each server."""
    name: str
    """Its address as it may be shown."""

    def predict(
        self, prediction_id: str, inputs: Mapping[str, JsonValue], trace_context: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[UpstreamEvent]]:
        """See `Upstream.predict`."""
        ...

    async def cancel(self, prediction_id: str) -> bool:
        """See `Upstream.cancel`."""
        ...

    async def health(self) -> str:
        """See `Upstream.health`."""
        ...

    async def openapi(self) -> dict[str, Any]:
        """See `Upstream.openapi`."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...
