"""The client of a Cog server: addresses, credentials, and servers that break off or send the gateway elsewhere."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from gateway.upstream.model_server import Upstream, UpstreamError

READY = b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\nConnection: close\r\n\r\n{"status":"READY"}'
ELSEWHERE = b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def server(answer: bytes, host: str = "127.0.0.1") -> AsyncIterator[tuple[int, list[str]]]:
    """A server that gives this answer to everything: its port, and the heads of what it was asked."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, host, 0) as listening:
        yield listening.sockets[0].getsockname()[1], heads


@asynccontextmanager
async def upstream(url: str) -> AsyncIterator[Upstream]:
    one = Upstream(url)
    try:
        yield one
    finally:
        await one.close()


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "localhost"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_addresses_are_names_and_numbers_of_both_kinds(host, name):
    async with server(READY, host) as (port, _), upstream(f"http://{name}:{port}") as one:
        assert await one.health() == "READY"


async def test_user_and_password_are_sent_with_each_request_and_never_shown():
    async with server(READY) as (port, heads), upstream(f"http://us%C3%A9r:p%40ss@127.0.0.1:{port}/below") as one:
        await one.health()
    assert heads[0].startswith("GET /below/health-check ")
    assert f"Authorization: Basic {base64.b64encode('usér:p@ss'.encode()).decode()}" in heads[0]
    async with upstream(f"http://user:secret@127.0.0.1:{port}") as one:
        with pytest.raises(UpstreamError) as refused:
            await one.health()
    assert "secret" not in str(refused.value)


async def test_a_proxy_in_the_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with server(READY) as (port, _), upstream(f"http://127.0.0.1:{port}") as one:
        assert await one.health() == "READY"


async def test_a_server_that_breaks_off_before_it_answers_is_asked_once():
    async with server(b"") as (port, heads), upstream(f"http://127.0.0.1:{port}") as one:
        with pytest.raises(UpstreamError, match="it closed the connection"):
            async with one.predict("a", {}, {}):
                pass
        assert len(heads) == 1


async def test_what_went_wrong_is_said_without_addresses_and_classes():
    async with server(b"") as (closed, _):
        pass
    async with (
        server(b"") as (cut, _),
        server(b"nonsense\r\n\r\n") as (nonsense, _),
        server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{") as (short, _),
    ):
        said = {}
        for name, address in (
            ("closed", f"127.0.0.1:{closed}"),
            ("cut", f"127.0.0.1:{cut}"),
            ("short", f"127.0.0.1:{short}"),
            ("nonsense", f"127.0.0.1:{nonsense}"),
            ("unknown", "nowhere.invalid:5000"),
        ):
            async with upstream(f"http://{address}") as one:
                with pytest.raises(UpstreamError) as caught:
                    await one.openapi()
                said[name] = str(caught.value)
    assert said["closed"] == "nothing listens at its address"
    assert said["cut"] == said["short"] == "it closed the connection before its answer ended"
    assert said["nonsense"] == "its answer is not HTTP as it should be"
    assert said["unknown"].startswith("it cannot be reached: ")
    assert not [text for text in said.values() if "Error" in text or "127.0.0.1" in text or "nowhere" in text]


async def test_no_request_follows_to_another_address():
    async with server(ELSEWHERE) as (port, heads), upstream(f"http://127.0.0.1:{port}") as one:
        assert not await one.cancel("a")
        with pytest.raises(UpstreamError, match="answered 302"):
            async with one.predict("a", {}, {}):
                pass
        assert len(heads) == 2


async def test_a_server_with_nagles_algorithm_does_not_wait_for_delayed_acknowledgements():
    """Cog's server is one. Without the remedy each answer but the first of a connection takes 40 ms or more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for part in (b'event: output\ndata: "x"\n\n', b"event: completed\ndata: {}\n\n", b""):
                    await asyncio.sleep(0.001)
                    writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        writer.close()

    seconds = []
    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening, upstream(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}") as one:
        for number in range(30):
            start = time.perf_counter()
            async with one.predict(str(number), {}, {}) as events:
                assert [event.name async for event in events] == ["output", "completed"]
            seconds.append(time.perf_counter() - start)
    assert min(seconds[1:]) < 0.03, "on a busy machine too, one of them"
