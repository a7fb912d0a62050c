"""The answer of Ray's proxy for a gateway that died: in the shape of the API that was asked, where none has begun."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.ray_serve.proxy_errors import middlewares

TEXT = "the gateway ended while it had this request; send it again"


async def dead(scope: Scope, receive: Receive, send: Send) -> None:
    """As Ray's proxy does where a replica died."""


async def broken_off(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})


async def asked(app: ASGIApp, path: str) -> httpx.Response:
    for middleware in middlewares():  # as Ray applies them
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://proxy") as client:
        return await client.post(path, json={})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/predictions", {"detail": TEXT, "status": 503, "title": "The gateway ended"}),
        ("/v1/completions", {"error": {"message": TEXT, "type": "server_error", "param": None, "code": None}}),
    ],
)
async def test_a_request_without_an_answer_gets_an_error_of_its_api(path: str, expected: dict) -> None:
    answer = await asked(dead, path)
    assert (answer.status_code, answer.json()) == (503, expected)
    assert answer.headers["Retry-After"] == "5" and answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_other_answers_stay_as_they_are() -> None:
    assert (await asked(PlainTextResponse("fine"), "/v1/predictions")).text == "fine"


async def test_an_answer_that_has_begun_is_not_begun_again() -> None:
    sent: list[dict] = []
    app: ASGIApp = broken_off
    for middleware in middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)

    async def send(message: dict) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": "/v1/predictions", "headers": []}, None, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
