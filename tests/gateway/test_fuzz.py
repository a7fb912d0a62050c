"""Random requests, and what is no HTTP at all: no answer is 500, and each error has its API's shape."""

from __future__ import annotations

import random
import socket

import pytest

from tests.gateway.door_server import DoorServer
from tests.gateway.fuzzed_requests import FuzzedRequest, is_error

pytestmark = pytest.mark.server
NUM_REQUESTS = 600
INPUTS = {"nlq": "a", "cols": "a", "max_tokens": 9}


def test_no_request_makes_the_door_fail(door: DoorServer) -> None:
    rng = random.Random(20)
    for number in range(NUM_REQUESTS):
        response = door.client.request(**FuzzedRequest.random(rng, INPUTS).arguments(door.url))
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
