"""Sends webhooks, where the operator allows it, and none to the gateway or its servers, whatever name leads there."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from errno import EACCES
from typing import Self

import aiohttp
import certifi
from aiohttp.abc import ResolveResult
from yarl import URL

from gateway.errors import InvalidInputError
from gateway.settings import GatewaySettings

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_OWN = "its address is the gateway's or a server's"


class WebhookError(Exception):
    """A webhook could not be sent, or its receiver redirects it."""


class WebhookClient:
    """A client of the receivers of webhooks. To be made in the event loop that uses it."""

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
        """Send a body once, and return the receiver's status. Its answer is not read: it may have any size.

        Raises:
            WebhookError: the body was not sent, or the receiver redirects it, which is not followed.
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
    """Resolves names for the connection itself: a name may lead elsewhere than when it was checked."""

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


async def check_webhook(url: object, settings: GatewaySettings, name: str = "webhook") -> None:
    """Refuse an address to which nothing may be sent; None is no address.

    Raises:
        InvalidInputError: the value is no address, its host is not allowed, or the gateway or a server listens there.
    """
    if url is None:
        return
    place = _place(url)
    if place is None:
        raise InvalidInputError.at((name,), "is not an address such as https://example.com/hook", "url")
    if not settings.allows_webhook(place[0]):
        text = f"the gateway may not send to {place[0][:100]}; its operator allows hosts with GATEWAY_WEBHOOK_HOSTS"
        raise InvalidInputError.at((name,), text, "not_allowed")
    if await is_own(str(url), settings):
        text = "is an address of the gateway or of one of its servers, which take no webhooks"
        raise InvalidInputError.at((name,), text, "not_allowed")


async def is_own(url: str, settings: GatewaySettings) -> bool:
    """Whether the gateway or one of its servers listens at an address, under whatever name."""
    place = _place(url)
    if place is None:
        return False
    return place == _place(settings.public_url) or await lead_here(await _resolve(*place), place[1], settings)


async def lead_here(addresses: set[str], port: int, settings: GatewaySettings) -> bool:
    """Whether the gateway or one of its servers listens at a port of one of these IP addresses.

    A server on this machine may listen at all of the machine's addresses, whichever of them the gateway knows.
    """
    addresses = {_plain(address) for address in addresses}
    own_ports = {settings.port, settings.cog_port}
    for upstream in settings.addresses():
        server = _place(upstream)
        if server is None or server[1] != port:
            continue
        known = await _resolve(*server)
        if addresses & known:
            return True
        if any(map(_is_of_this_machine, known)):
            own_ports.add(port)
    return port in own_ports and any(map(_is_of_this_machine, addresses))


def _place(url: object) -> tuple[str, int] | None:
    """Host and port of an address, as the client that sends webhooks reads it."""
    if not isinstance(url, str) or re.search(r"[\s\x00-\x1f]", url):
        return None
    try:
        address = URL(url)
    except ValueError:
        return None
    host, port = address.raw_host, address.port
    return (host, port) if address.scheme in ("http", "https") and host and port is not None else None


async def _resolve(host: str, port: int) -> set[str]:
    """The IP addresses of a name, or of any way to write an address such as 127.1; empty if there are none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {_plain(str(address[0])) for *_, address in found}


def _plain(address: str) -> str:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(ip, "ipv4_mapped", None) or ip)


def _is_of_this_machine(address: str) -> bool:
    """Whether a server here may listen at an address; 0.0.0.0 leads here as well."""
    ip = ipaddress.ip_address(address)
    if ip.is_loopback or ip.is_unspecified:
        return True
    with closing(socket.socket(socket.AF_INET6 if ip.version == 6 else socket.AF_INET)) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
