"""Spans of the real gateway with a fake Cog server, as a collector gets them; what tracing costs and cannot break."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from gateway.http.request_log import JsonFormatter
from tests.gateway.fake_cog import FakeCog
from tests.gateway.gateway_server import ROOT
from tests.gateway.open_app import BODY, CREATE, create, open_app
from tests.otlp_receiver import NO_PARENT, OtlpReceiver

CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
POST = "POST /v1/models/{owner}/{name}/predictions"
TRACEPARENT = {"traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-01"}
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


async def test_a_prediction_s_spans_continue_the_caller_s_trace_as_far_as_cog_and_the_log(tmp_path, receiver, caplog):
    caplog.set_level(logging.INFO)
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        prediction = await create(client, TRACEPARENT)
    request, whole, ask = receiver.named(POST), receiver.named("prediction"), receiver.named(ASK)
    wait = receiver.named("wait for a server")
    assert {span.trace_id for span in receiver.spans} == {CALLER_TRACE}
    assert [request.parent_id, whole.parent_id] == [CALLER_SPAN, request.span_id]
    assert [wait.parent_id, ask.parent_id] == [whole.span_id, whole.span_id]
    assert whole.start <= wait.start <= wait.end <= ask.start <= ask.end <= whole.end
    assert request.attributes["http.response.status_code"] == 201
    assert request.attributes["url.path"] == CREATE
    assert whole.attributes == {"gateway.prediction.id": prediction["id"], "gateway.prediction.status": "succeeded"}
    assert {span.service for span in receiver.spans} == {"gateway"}
    [(head, body)] = cog.requests
    sent = f"00-{CALLER_TRACE}-{ask.span_id}-01"
    assert body["context"] == {"traceparent": sent}
    assert f"traceparent: {sent}" in head.lower()
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    traces = {line["message"]: line.get("trace_id") for line in lines if "prediction_id" in line}
    assert traces == {"request": CALLER_TRACE, "prediction": CALLER_TRACE}


async def test_no_span_has_inputs_keys_or_query_strings(tmp_path, receiver):
    async with FakeCog(break_after=1) as cog, open_app(tmp_path, cog) as client:
        created = await client.post(f"{CREATE}?token=abcdef", json=BODY, headers={"Authorization": "Bearer k3y"})
        await client.get(f"/v1/predictions/{created.json()['id']}?token=abcdef")
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
        await create(client)
    asked = sorted((span for span in receiver.spans if span.name == ASK), key=lambda span: span.start)
    assert [span.attributes.get("error.type") for span in asked] == ["UpstreamBusyError", None]
    assert [span.attributes["server.port"] for span in asked] == [full.port, cog.port]
    assert len([span for span in receiver.spans if span.name == "wait for a server"]) == 2


async def test_without_an_endpoint_nothing_is_sent_to_cog(tmp_path):
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        await create(client, TRACEPARENT)
    [(head, body)] = cog.requests
    assert "context" not in body
    assert "traceparent" not in head.lower()


def test_without_an_endpoint_opentelemetry_is_not_imported():
    imports = "from gateway.app import create_app\nfrom gateway.settings import GatewaySettings\nimport sys"
    shown = "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    code = f"{imports}\ncreate_app(GatewaySettings())\n{shown}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("answers", [False, True], ids=["refuses connections", "is silent"])
async def test_a_dead_collector_neither_breaks_predictions_nor_holds_them_up(tmp_path, monkeypatch, answers):
    limits, threads = [], set()

    class Exporter(OTLPSpanExporter):
        def __init__(self, timeout):
            limits.append(timeout)
            super().__init__(timeout=0.2)

        def export(self, spans):
            threads.add(threading.current_thread())
            return super().export(spans)

    monkeypatch.setattr("gateway.tracing.spans.OTLPSpanExporter", Exporter)
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        if answers:
            listener.listen()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        async with asyncio.timeout(60), FakeCog() as cog, open_app(tmp_path, cog) as client:
            for _ in range(20):
                assert (await create(client))["status"] == "succeeded"
    assert limits[0] <= 3, "seconds; a gateway that stops waits for it twice"
    assert threads
    assert threading.main_thread() not in threads
