"""What is no HTTP at all hurts nobody; tests/gateway/keys/test_no_leak.py asks random requests."""

from __future__ import annotations

import socket

import pytest

from tests.gateway.gateway_server import GatewayServer

pytestmark = pytest.mark.server


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
def test_what_is_no_http_hurts_nobody(gateway: GatewayServer, text: bytes) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(4096):
                answer += part
        except ConnectionError:
            pass
    assert b" 500 " not in answer.partition(b"\r\n")[0]
    assert gateway.client.get("/health").status_code == 200
    assert "Traceback" not in gateway.log.read_text()
