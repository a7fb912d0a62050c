"""One trace from the gateway's HTTP request to the engine's steps, with the real Cog server between them."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.endurance.cog_process import CogServer
from tests import small_model
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.started_cog import start_cog
from tests.otlp_receiver import OtlpReceiver

pytestmark = pytest.mark.server
TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
INPUTS = {"nlq": "slowest traces by secret.question", "cols": "name, duration_ms, secret.question", "max_tokens": 48}
ASK = "PUT /predictions/{prediction_id}"


@pytest.fixture
def receiver(monkeypatch):
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
        yield receiver


def predict(gateway: GatewayServer) -> dict:
    created = gateway.create({"traceparent": f"00-{TRACE}-{CALLER_SPAN}-01"}, **INPUTS)
    return gateway.wait_for(created["id"], "succeeded", "failed")


@pytest.mark.weights
def test_the_engine_s_steps_are_below_the_request_and_drafts_are_counted_by_kind(tmp_path, receiver):
    cog = CogServer("predict.py:Predictor", env={"ENGINE": "paged", **small_model.SETTINGS}, log=tmp_path / "cog.log")
    with cog, GatewayServer([cog.url], tmp_path) as gateway:
        metrics = predict(gateway)["metrics"]
        receiver.wait_for("predict", "decode", "prediction")
        families = text_string_to_metric_families(gateway.client.get("/metrics").text)
        samples = [one for family in families for one in family.samples]
    predicted = receiver.named("predict")
    assert predicted.parent_id == receiver.named(ASK).span_id
    assert (predicted.service, receiver.named("prediction").service) == ("cog", "gateway")
    phases = [receiver.named(name) for name in ("prepare", "queue", "prefill", "decode")]
    assert {span.parent_id for span in phases} == {predicted.span_id}
    assert {span.trace_id for span in (predicted, *phases)} == {TRACE}
    times = [time for span in phases for time in (span.start, span.end)]
    assert times == sorted(times)
    steps = [event for span in phases for event in span.events]
    for name, metric in (("tokens", "output_token_count"), ("drafts", "draft_token_count")):
        assert sum(step[name] for step in steps) == metrics[metric] > 0
    assert sum(step["accepted"] for step in steps) == metrics["accepted_token_count"] > 0
    assert sum(step["steps"] for step in steps) <= metrics["model_passes"]
    assert all(step["rows"] >= 1 + step["drafts"] for step in steps)
    assert "secret" not in repr(receiver.spans)
    for name, metric in (("draft", "drafted_by_kind"), ("accepted", "accepted_by_kind")):
        found = {one.labels["kind"]: one.value for one in samples if one.name == f"gateway_{name}_tokens_total"}
        assert {kind: number for kind, number in found.items() if number} == metrics[metric]
        assert any(found.values())


def test_with_cog_s_own_tracing_its_spans_are_between_the_gateway_and_the_engine(tmp_path, receiver, monkeypatch):
    monkeypatch.setenv("COG_TRACE_CONFIGURED", "1")
    with start_cog(tmp_path) as cog, GatewayServer([cog.url], tmp_path) as gateway:
        predict(gateway)
        spans = receiver.wait_for("predict", "decode", "prediction", "cog.prediction.invoke", "cog.prediction.execute")
        by_id = {span.span_id: span for span in receiver.wait_for("PUT /predictions/{id}", "cog.prediction", ASK)}
    above = [receiver.named("predict")]
    while (parent := by_id.get(above[-1].parent_id)) is not None:
        above.append(parent)
    names = [span.name for span in above]
    assert names[1] == "cog.prediction.invoke"
    assert names[-3:] == [ASK, "prediction", "POST /v1/models/{owner}/{name}/predictions"]
    assert {span.trace_id for span in above} == {TRACE}
    assert "secret" not in repr(spans)
