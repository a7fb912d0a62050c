"""The gateway's application in this process, with a client that needs no socket, and what the tests ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx

from gateway.app import create_app
from gateway.keys.key_file import KeyFile
from gateway.settings import GatewaySettings
from tests.gateway.fake_cog import FakeCog

CREATE = "/v1/models/local/model/predictions"
BODY = {"input": {"text": "my secret question"}}
CACHE = {"cache_mb": 1, "weights_digest": "d" * 64}


@asynccontextmanager
async def open_app(folder: Path, *servers: FakeCog, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    own: dict[str, object] = {"database": folder / "gateway.sqlite", "drain_seconds": 0}
    own |= {"upstreams": tuple(server.url for server in servers)} if servers else {}
    app = create_app(GatewaySettings(**{**own, **settings}))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


def bearer(key: str) -> dict[str, str]:
    """The header that sends a key."""
    return {"Authorization": f"Bearer {key}"}


def make_keys(folder: Path, *names: str, per_minute: int | None = None) -> dict[str, str]:
    """New keys, by name, of the gateway in this folder."""
    with closing(KeyFile(folder / "keys.sqlite")) as file:
        return {name: file.create(name, per_minute=per_minute) for name in names}


async def create(client: httpx.AsyncClient, headers: Mapping[str, str] | None = None, **inputs: Any) -> dict[str, Any]:
    """A prediction of Replicate's API that has ended."""
    headers = {"Prefer": "wait", **(headers or {})}
    response = await client.post(CREATE, json={"input": inputs} if inputs else BODY, headers=headers)
    assert response.status_code == 201, response.text
    return response.json()
