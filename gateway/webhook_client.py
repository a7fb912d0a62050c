"""Sends webhooks; none to the gateway or its servers, whatever name or redirect leads there."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from errno import EACCES
from typing import Self

import aiohttp
import certifi
from aiohttp.abc import ResolveResult
from yarl import URL

from gateway.settings import GatewaySettings
from gateway.webhook_addresses import is_own, lead_here

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_OWN = "its address is the gateway's or a server's"


class WebhookError(Exception):
    """A webhook could not be sent, or its receiver redirects it."""


class WebhookClient:
    """A client of the receivers of webhooks. To be made in the event loop that uses it.

    Args:
        settings: of the gateway.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        trusted = ssl.create_default_context(cafile=certifi.where())
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=trusted, resolver=_Resolver(settings)),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_TIMEOUT,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._session.close()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send once; the receiver's status. Its answer is not read: it may have any size.

        Raises:
            WebhookError: it was not sent, or the receiver redirects it, which is not followed.
        """
        if await is_own(url, self._settings):  # an IP address has nothing to resolve
            raise WebhookError(_OWN)
        try:
            async with self._session.post(URL(url), data=body, headers=headers, allow_redirects=False) as response:
                status = response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise WebhookError(f"{type(error).__name__} {error}".rstrip()) from error
        if 300 <= status < 400:
            raise WebhookError(f"answered {status}")
        return status


class _Resolver(aiohttp.ThreadedResolver):
    """Resolves names for the connection itself: a name may lead elsewhere than when it was checked.

    Args:
        settings: of the gateway.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        super().__init__()
        self._settings = settings

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        if await lead_here({one["host"] for one in found}, port, self._settings):
            raise OSError(EACCES, _OWN)
        return found
