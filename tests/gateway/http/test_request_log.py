"""The log: a JSON line for each request and prediction, without keys and inputs unless asked."""

from __future__ import annotations

import json
import logging

import pytest

from gateway.http.request_log import JsonFormatter
from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import BODY, CREATE, bearer, make_keys, open_app
from tests.gateway.running import until


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [json.loads(JsonFormatter().format(record)) for record in caplog.records]


async def logged(lines, message: str, number: int) -> list[dict]:
    """The lines with this message, once there are as many."""
    await until(lambda: len([line for line in lines() if line["message"] == message]) >= number)
    return [line for line in lines() if line["message"] == message]


async def test_a_request_and_its_prediction_have_a_line_with_the_same_ids(tmp_path, lines):
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        response = await client.post(CREATE, json=BODY, headers={"X-Request-Id": "mine-1", "Prefer": "wait"})
        prediction_id = response.json()["id"]
        assert response.headers["x-request-id"] == "mine-1"
        await client.get(f"/v1/predictions/{prediction_id}?token=abc", headers={"X-Request-Id": "a\tb"})
        await client.get("/health")
        [created, read] = await logged(lines, "request", 2)
        [ended] = await logged(lines, "prediction", 1)
    assert (created["status"], created["method"], created["path"]) == (201, "POST", CREATE)
    assert created["prediction_id"] == read["prediction_id"] == ended["prediction_id"] == prediction_id
    assert created["request_id"] == ended["request_id"] == "mine-1"
    assert "\t" not in read["request_id"], "an id that would spoil a log is replaced"
    assert (ended["status"], created["level"]) == ("succeeded", "info")
    assert created["seconds"] >= 0 <= ended["seconds"]
    assert "token" not in json.dumps(read)


async def test_neither_keys_nor_inputs_are_logged(tmp_path, lines):
    key = make_keys(tmp_path, "alice")["alice"]
    async with FakeCog(break_after=1) as cog, open_app(tmp_path, cog, keys="required") as client:
        for secret in (key, key[:-1] + "~"):
            await client.post(CREATE, json=BODY, headers=bearer(secret))
        await client.post(CREATE, content=b'{"input": my secret question')
        [created, *_] = await logged(lines, "request", 3)
        await logged(lines, "prediction", 1)
    text = json.dumps(lines())
    assert created["caller"] == "alice"
    assert key[15:40] not in text
    assert "secret question" not in text


async def test_inputs_are_logged_when_that_is_asked(tmp_path, lines):
    async with FakeCog() as cog, open_app(tmp_path, cog, log_inputs=True) as client:
        await client.post(CREATE, json=BODY)
        [ended] = await logged(lines, "prediction", 1)
    assert ended["input"] == BODY["input"]


def test_a_line_stays_one_line():
    record = logging.LogRecord("x", logging.WARNING, "", 0, "two\nlines", (), None)
    assert "\n" not in JsonFormatter().format(record)
