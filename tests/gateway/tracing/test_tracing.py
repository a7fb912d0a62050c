"""Spans of the real door with a fake Cog server, as a collector gets them; and what tracing costs and cannot break."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import sys
import time

import httpx
import pytest

from gateway.request_log import JsonFormatter
from tests.gateway.door_server import ROOT
from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import open_app
from tests.otlp_receiver import NO_PARENT, OtlpReceiver

CREATE = "/v1/models/local/model/predictions"
BODY = {"input": {"text": "my secret question"}}
CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ASK = "PUT /predictions/{prediction_id}"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("OTEL_SERVICE_NAME", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture
def receiver(monkeypatch):
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver


async def predict(client: httpx.AsyncClient, **headers: str) -> dict:
    response = await client.post(CREATE, json=BODY, headers={"Prefer": "wait", **headers})
    assert response.status_code == 201, response.text
    return response.json()


async def test_a_prediction_s_spans_continue_the_caller_s_trace_as_far_as_cog(tmp_path, receiver):
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        cog.gate.set()
        prediction = await predict(client, traceparent=f"00-{CALLER_TRACE}-{CALLER_SPAN}-01")
    request, whole, ask = receiver.named(f"POST {template()}"), receiver.named("prediction"), receiver.named(ASK)
    wait = receiver.named("wait for a server")
    assert {span.trace_id for span in receiver.spans} == {CALLER_TRACE}
    assert [request.parent_id, whole.parent_id] == [CALLER_SPAN, request.span_id]
    assert [wait.parent_id, ask.parent_id] == [whole.span_id, whole.span_id]
    assert whole.start <= wait.start <= wait.end <= ask.start <= ask.end <= whole.end
    assert request.attributes["http.response.status_code"] == 201
    assert request.attributes["url.path"] == CREATE
    assert whole.attributes == {"door.prediction.id": prediction["id"], "door.prediction.status": "succeeded"}
    assert {span.service for span in receiver.spans} == {"door"}
    [(head, body)] = cog.requests
    sent = f"00-{CALLER_TRACE}-{ask.span_id}-01"
    assert body["context"] == {"traceparent": sent}
    assert f"traceparent: {sent}" in head.lower()


def template() -> str:
    return "/v1/models/{owner}/{name}/predictions"


async def test_no_span_has_inputs_keys_or_query_strings(tmp_path, receiver):
    async with FakeCog(break_after=1) as cog, open_app(tmp_path, cog) as client:
        cog.gate.set()
        created = (
            await client.post(f"{CREATE}?token=abcdef", json=BODY, headers={"Authorization": "Bearer k3y"})
        ).json()
        await client.get(f"/v1/predictions/{created['id']}?token=abcdef")
        await client.post(CREATE, content=b'{"input": my secret question')
        await client.get("/health")
    seen = repr([(span.name, span.attributes, span.events) for span in receiver.spans])
    assert not [word for word in ("secret", "k3y", "abcdef", "question") if word in seen]
    assert "/health" not in seen
    assert receiver.named("prediction").is_error
    assert receiver.named(ASK).attributes["error.type"] == "UpstreamError"
    assert {span.parent_id for span in receiver.spans if span.name.startswith("GET")} == {NO_PARENT}


async def test_each_server_that_was_asked_has_a_span(tmp_path, receiver):
    async with FakeCog(full=True) as full, FakeCog() as cog, open_app(tmp_path, full, cog) as client:
        cog.gate.set()
        await predict(client)
    asked = sorted((span for span in receiver.spans if span.name == ASK), key=lambda span: span.start)
    assert [span.attributes.get("error.type") for span in asked] == ["UpstreamBusyError", None]
    assert [span.attributes["server.port"] for span in asked] == [full.port, cog.port]
    assert len([span for span in receiver.spans if span.name == "wait for a server"]) == 2


async def test_log_lines_have_the_trace_s_id(tmp_path, receiver, caplog):
    caplog.set_level(logging.INFO)
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        cog.gate.set()
        await predict(client, traceparent=f"00-{CALLER_TRACE}-{CALLER_SPAN}-01")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    traces = {line["message"]: line.get("trace_id") for line in lines if "prediction_id" in line}
    assert traces == {"request": CALLER_TRACE, "prediction": CALLER_TRACE}


async def test_without_an_endpoint_nothing_is_sent_to_cog(tmp_path):
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        cog.gate.set()
        await predict(client, traceparent=f"00-{CALLER_TRACE}-{CALLER_SPAN}-01")
    [(head, body)] = cog.requests
    assert "context" not in body
    assert "traceparent" not in head.lower()


def test_without_an_endpoint_opentelemetry_is_not_imported():
    app = "from gateway.app import create_app\nfrom gateway.settings import DoorSettings\ncreate_app(DoorSettings())"
    code = f"{app}\nimport sys\nprint([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("answers", [False, True], ids=["refuses connections", "is silent"])
async def test_a_dead_collector_neither_breaks_predictions_nor_holds_them_up(tmp_path, monkeypatch, answers):
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        if answers:
            listener.listen()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        async with FakeCog() as cog, open_app(tmp_path, cog) as client:
            cog.gate.set()
            await predict(client)
            started = time.monotonic()
            for _ in range(20):
                assert (await predict(client))["status"] == "succeeded"
            assert time.monotonic() - started < 5, "about a tenth of a second is usual"
            closing = time.monotonic()
        assert time.monotonic() - closing < 8, "twice the time limit of an export, at most"
