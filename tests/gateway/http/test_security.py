"""What browsers are told, and what slow, large and foreign requests get over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator

import pytest

from gateway.settings import GatewaySettings
from tests.free_ports import free_port
from tests.gateway.fake_cog import FakeCog
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.open_app import BODY, CREATE, open_app
from tests.gateway.running import until

SITE = {"Origin": "https://example.com"}


@pytest.fixture(scope="module")
def lone_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    """A gateway without a Cog server: what is refused never gets to one."""
    nobody = f"http://127.0.0.1:{free_port()}"
    folder = tmp_path_factory.mktemp("lone")
    settings = {"HEAD_SECONDS": 0.5, "MAX_BODY_BYTES": 4096}
    with GatewayServer([nobody], folder, wait_until="/health", **settings) as gateway:
        yield gateway


def exchange(gateway: GatewayServer, *parts: bytes) -> bytes:
    """Send parts over one connection; all that comes back until the gateway closes it."""
    answer = b""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as connection:
        with contextlib.suppress(ConnectionError):  # the gateway may answer and close before all is sent
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(4096):
                answer += part
    return answer


def test_every_response_has_the_headers_that_browsers_obey(lone_gateway):
    for path in ("/health", "/metrics", "/v1/nothing", "/login", "/"):
        headers = lone_gateway.client.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == ("same-origin" if path == "/login" else "no-referrer")
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_until_a_server_is_ready_a_page_says_that_it_starts(lone_gateway):
    response = lone_gateway.client.get("/")
    assert (response.status_code, response.headers["refresh"]) == (503, "2")
    assert "The model is starting" in response.text


HEALTH = b"GET /health HTTP/1.1\r\n"


@pytest.mark.parametrize("start", [b"", HEALTH, HEALTH + b"Host: localhost\r\n\r\nGET /health HTT"])
def test_headers_that_never_end_are_given_up(lone_gateway, start):
    """The headers of a connection's second request are given up too."""
    answer = exchange(lone_gateway, start)
    assert answer.startswith(b"HTTP/1.1 200 ") == (b"GET /health HTT" in start[1:])
    assert b"HTTP/1.1 408 " in answer


def test_headers_without_end_are_too_large(lone_gateway):
    for start, more in ((b"", b"X-Name: value\r\n" * 1000), (b"X: ", b"y" * 10_000)):
        assert b"HTTP/1.1 431 " in exchange(lone_gateway, HEALTH + start, *[more] * 100)


def test_a_body_in_chunks_has_the_same_limit_as_one_with_a_length(lone_gateway):
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    head = f"POST {CREATE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    chunked = exchange(lone_gateway, head.encode() + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 5)
    whole = exchange(lone_gateway, head.encode() + b"Content-Length: 5000\r\n\r\n", b" " * 5000)
    assert [answer.partition(b"\r\n")[0].split()[1] for answer in (chunked, whole)] == [b"413", b"413"]


async def test_a_body_that_never_ends_is_given_up_and_a_large_login_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.http.bodies.BODY_SECONDS", 0.2)

    async def body():
        yield b"{"
        await asyncio.Event().wait()

    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        for path in (CREATE, "/login"):
            assert (await client.post(path, content=body())).status_code == 408
        assert (await client.post("/login", content=b"key=" + b"a" * 5000)).status_code == 413


async def test_a_page_of_another_site_can_neither_send_nor_read(tmp_path):
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        simple = {**SITE, "Content-Type": "text/plain"}  # what a browser sends without asking first
        refused = await client.post(CREATE, json=BODY, headers=simple)
        assert (refused.status_code, refused.json()["title"]) == (403, "Forbidden")
        assert cog.asked == []
        for own in ({}, {"Origin": "http://localhost"}):
            assert (await client.post(CREATE, json=BODY, headers=own)).status_code == 201
        asked = await client.options(CREATE, headers={**SITE, "Access-Control-Request-Method": "POST"})
        assert "access-control-allow-origin" not in asked.headers


async def test_a_site_that_is_allowed_can(tmp_path):
    async with FakeCog() as cog, open_app(tmp_path, cog, cors_origins="https://example.com") as client:
        wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,prefer"}
        asked = await client.options(CREATE, headers={**SITE, **wanted})
        assert asked.headers["access-control-allow-origin"] == "https://example.com"
        created = await client.post(CREATE, json=BODY, headers=SITE)
        assert (created.status_code, created.headers["access-control-allow-origin"]) == (201, "https://example.com")
        assert "access-control-allow-credentials" not in created.headers
        other = await client.post(CREATE, json=BODY, headers={"Origin": "https://example.com.evil.org"})
        assert other.status_code == 403
        assert "access-control-allow-origin" not in other.headers


LOCAL = ("localhost", "127.0.0.1:8080", "[::1]:80", "LOCALHOST:1", "127.0.0.2")
SITES = ("evil.example", "evil.example:8080", "localhost.evil.example", "localhost@evil.example", "", "a b")
STRANGE = (*SITES, "[::2]")


@pytest.mark.parametrize(
    ("settings", "allowed", "refused"),
    [
        ({"host": "LocalHost"}, LOCAL, STRANGE),
        ({"public_url": "https://gateway.example"}, (*LOCAL, "Gateway.example", "gateway.example:443"), STRANGE),
        ({"hosts": "One.example, two.example"}, (*LOCAL, "one.example:80", "two.example"), STRANGE),
        ({"hosts": "*"}, (*LOCAL, *STRANGE), ()),
        ({"host": "0.0.0.0"}, (*LOCAL, "[::2]", "10.1.2.3:8080", "gateway", "model-0:8080"), SITES),
        ({"host": "0.0.0.0", "public_url": "https://gateway.example"}, (*LOCAL, "gateway.example"), SITES),
        ({"host": "0.0.0.0", "hosts": "*"}, (*LOCAL, *STRANGE), ()),
        ({"host": "0.0.0.0", "hosts": "one.example"}, (*LOCAL, "one.example", "0.0.0.0:80"), STRANGE),
    ],
)
async def test_a_gateway_answers_only_to_its_own_names(tmp_path, settings, allowed, refused):
    """Else a page of a site whose name resolves to this machine could read all predictions."""
    async with FakeCog() as cog, open_app(tmp_path, cog, **settings) as client:
        for host in allowed:
            assert (await client.get("/v1/predictions", headers={"Host": host})).status_code == 200, host
        for host in refused:
            for path in ("/v1/predictions", "/", "/p/x", "/metrics"):
                assert (await client.get(path, headers={"Host": host})).status_code == 403, (host, path)
            problem = (await client.get("/v1/predictions", headers={"Host": host})).json()
            assert "GATEWAY_HOSTS" in problem["detail"]
            error = (await client.get("/v1/models", headers={"Host": host})).json()["error"]
            assert error["type"] == "permission_error"


def test_a_request_to_two_names_is_refused(lone_gateway):
    """A proxy may look at one of them and the gateway at the other."""
    for second in (b"localhost", b"evil.example"):
        asked = HEALTH + b"Host: localhost\r\nHost: " + second + b"\r\nConnection: close\r\n\r\n"
        answer = exchange(lone_gateway, asked)
        assert answer.startswith(b"HTTP/1.1 400 ") and b"several Host headers" in answer


def test_an_origin_that_is_no_url_is_refused(lone_gateway):
    for origin in ("http://[", "null", "http://[::1", "a"):
        assert lone_gateway.client.post(CREATE, json=BODY, headers={"Origin": origin}).status_code == 403


async def test_an_internal_error_has_the_same_headers_is_counted_and_has_an_id(tmp_path, monkeypatch):
    async def fail(*_, **__):
        raise RuntimeError("a secret of the gateway")

    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        monkeypatch.setattr("gateway.predictions.store.Store.page", fail)
        answer = await client.get("/v1/predictions")
        assert (answer.status_code, answer.json()["title"]) == (500, "Internal error")
        assert "secret" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert len(answer.headers["x-request-id"]) >= 8
        metrics = (await client.get("/metrics")).text
        assert re.search(r"^gateway_errors_total.*InternalError", metrics, re.MULTILINE), metrics[:2000]


def test_behind_a_proxy_the_gateway_is_not_local():
    """A proxy on the same machine passes strangers' requests: these must not make the gateway call anywhere."""
    assert GatewaySettings().allows_webhook("169.254.169.254")
    behind = GatewaySettings(public_url="https://example.com")
    assert not behind.is_local
    assert not behind.allows_webhook("169.254.169.254")


def test_every_spelling_of_this_machine_is_local():
    for host in ("127.0.0.1", "127.1.2.3", "::1", "0:0:0:0:0:0:0:1", "LocalHost"):
        assert GatewaySettings(host=host).is_local
    for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.0.0.1.example", ""):
        assert not GatewaySettings(host=host).is_local


async def test_a_server_s_password_is_neither_answered_nor_logged(tmp_path, caplog):
    caplog.set_level("INFO")
    async with FakeCog() as cog:
        address = cog.url.replace("//", "//user:secret@")
        async with open_app(tmp_path, upstreams=address) as client:
            ready = await client.get("/ready")
            assert (ready.status_code, ready.json()["servers"][0]["url"]) == (200, cog.url)
            assert f"{cog.url} is ready" in caplog.text
            await cog.stop()
            await until(lambda: f"ejected {cog.url}" in caplog.text)
            unready = await client.get("/ready")
            assert unready.status_code == 503
    assert "secret" not in ready.text + unready.text + caplog.text


def test_the_gateways_own_address():
    for host, address in (("::1", "[::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1")):
        assert GatewaySettings(host=host).base_url == f"http://{address}:8080"
