"""Random requests: no answer is 500, each error has its API's shape, and nobody's prediction is shown to another."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import httpx
import pytest

from tests.gateway.door_server import MODEL, DoorServer

pytestmark = pytest.mark.server
NUM_REQUESTS = 600
METHODS = ("GET", "POST", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")
PATHS = (
    *("/v1/predictions", f"/v1/models/{MODEL}/predictions", f"/v1/deployments/{MODEL}/predictions"),
    *("/v1/predictions/{}", "/v1/predictions/{}/cancel", "/v1/predictions/{}/stream", "/v1/predictions?cursor={}"),
    *(f"/v1/models/{MODEL}", f"/v1/models/{MODEL}/versions/{{}}", "/v1/models/{}/{}", "/{}", "/v1/{}", "//{}"),
    *("/v1/chat/completions", "/v1/completions", "/v1/models", "/", "/p/{}", "/metrics", "/health", "/ready"),
)
PIECES = (
    *(
        "a" * 26,
        "..",
        "%00",
        "%2e%2e%2f",
        "a" * 5000,
        "%ff",
        "%c3%a9",
        "'; DROP TABLE predictions; --",
        "*",
        "null",
        "",
    ),
    *("bmV3ZXI9OTk5OTk5OTk5OTk5OTk5OTk5OTk5", "b2xkZXI9LTE", "b2xkZXI9MA", "{}", "0", "<script>", "predictions"),
)
HEADERS = {
    "Prefer": ("wait=1", "wait=999", "wait=\xff", "respond-async", ";;;", "wait=1" * 500),
    "Last-Event-ID": ("1:1-1", "x", "\xff", "999999999999999:999999999-999999999", "-1"),
    "Content-Type": ("text/plain", "application/json; charset=utf-16", "", "multipart/form-data"),
    "Content-Encoding": ("gzip", "br"),
    "Accept": ("text/event-stream", "image/png", ""),
    "Authorization": ("Bearer x", "Token", "\xff"),
    "Host": ("evil.example/x", "a:b:c", "[::", "x" * 300),
    "X-Forwarded-Host": ("evil.example",),
}
LEAVES = (
    None,
    True,
    False,
    0,
    -1,
    1e308,
    10**400,
    "",
    "a",
    "\0",
    "é" * 300,
    "🐝",
    "\\ud800",
    [],
    {},
    [[]],
    "x" * 20_000,
)
NAMES = (
    *("input", "version", "webhook", "webhook_events_filter", "stream", "id", "nlq", "cols", "max_tokens", "", "\0"),
    *("model", "messages", "prompt"),
)


def value(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(4 if depth < 4 else 1):
        case 1:
            return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
        case 2 | 3:
            return {rng.choice(NAMES): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice(LEAVES)


def body(rng: random.Random) -> bytes:
    whole = {"input": {"nlq": "a", "cols": "a", "max_tokens": 9}, "version": MODEL, "stream": True}
    match rng.randrange(5):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:
            content: Any = value(rng)
        case 2:
            content = {**whole, rng.choice(NAMES): value(rng)}
        case _:
            content = {**whole, "input": {**whole["input"], rng.choice(NAMES): value(rng)}}
    text = json.dumps(content, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.1 else text


def send(door: DoorServer, rng: random.Random) -> httpx.Response:
    path = rng.choice(PATHS)
    while "{}" in path:
        path = path.replace("{}", rng.choice(PIECES), 1)
    names = rng.sample(sorted(HEADERS), rng.randrange(3))
    headers = [(name.encode(), rng.choice(HEADERS[name]).encode("latin-1")) for name in names]
    url = httpx.URL(door.url).copy_with(raw_path=path.encode())
    return door.client.request(rng.choice(METHODS), url, content=body(rng), headers=headers)


def is_error(response: httpx.Response) -> bool:
    """Whether it has the shape of an API's errors; pages and uvicorn, which refuses what is not HTTP, answer texts."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind == "application/problem+json":
        return response.json()["status"] == response.status_code and bool(response.json()["detail"])
    if kind == "application/json":
        content = response.json()
        return bool(content["error"]["message"] if "error" in content else content["detail"])
    return kind in ("text/html", "text/plain") and bool(response.text)


def test_no_request_makes_the_door_fail(door: DoorServer) -> None:
    rng = random.Random(20)
    for number in range(NUM_REQUESTS):
        response = send(door, rng)
        said = (number, response.request.method, response.request.url, response.status_code, response.text[:300])
        assert response.status_code < 500, said
        if response.status_code >= 400 and response.request.method != "HEAD":
            assert is_error(response), said
    assert door.client.get("/ready").status_code == 200
    assert "Traceback" not in door.log.read_text()


@pytest.mark.parametrize(
    "text",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
        "GET /v1/predictions/é HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(),
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/predictions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/predictions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/predictions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{",  # and no more
    ],
)
def test_what_is_no_http_hurts_nobody(door: DoorServer, text: bytes) -> None:
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(4096):
                answer += part
        except ConnectionError:
            pass
    assert b" 500 " not in answer.partition(b"\r\n")[0]
    assert door.client.get("/health").status_code == 200
    assert "Traceback" not in door.log.read_text()
