"""The door's application in this process, with a client that needs no socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from gateway.app import create_app
from gateway.settings import DoorSettings
from tests.gateway.fake_cog import FakeCog


@asynccontextmanager
async def open_app(folder: Path, *servers: FakeCog, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    own = {"upstreams": tuple(server.url for server in servers), "database": folder / "door.sqlite", "drain_seconds": 0}
    app = create_app(DoorSettings(**{**own, **settings}))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client
