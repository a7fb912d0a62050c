"""What /metrics says after predictions of a real Cog server, and that the dashboard asks only for what is there."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.measuring import count_ended
from gateway.metrics.meters import Meters
from gateway.predictions.prediction import Prediction, Status
from tests.gateway.gateway_server import ROOT, GatewayServer

DASHBOARD = ROOT / "gateway/metrics/grafana.json"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(gateway: GatewayServer) -> Samples:
    response = gateway.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(response.text)


def parsed(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of a metric over all label values that are not given."""
    return sum(value for (key, have), value in samples.items() if key == name and labels.items() <= set(have))


@pytest.mark.server
def test_predictions_tokens_and_requests_are_counted(gateway):
    before = scrape(gateway)
    created = gateway.create(nlq="how many?", cols="a,b")
    metrics = gateway.wait_for(created["id"], "succeeded")["metrics"]
    assert gateway.post(input={"nlq": 5, "cols": "a"}).status_code == 422
    gateway.client.get("/v1/predictions/unknown")
    after = scrape(gateway)

    def grown(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    assert grown("vllm:prompt_tokens_total") == metrics["input_token_count"] > 0
    assert grown("vllm:generation_tokens_total") == metrics["output_token_count"] > 0
    assert grown("gateway_model_passes_total") == metrics["model_passes"] > 0
    assert grown("gateway_predictions_total", status="succeeded") == 1
    assert grown("vllm:time_to_first_token_seconds_count") == 1
    assert grown("vllm:inter_token_latency_seconds_count") > 3
    assert grown("gateway_requests_total", api="replicate", method="POST", status="201") == 1
    assert grown("gateway_requests_total", api="replicate", status="422") == 1
    assert grown("gateway_errors_total", api="replicate", type="InvalidInputError") == 1
    assert grown("gateway_errors_total", api="replicate", type="NotFoundError") == 1
    assert grown("gateway_prediction_failures_total") == 0, "refused inputs are no prediction"
    assert total(after, "gateway_upstream_healthy") == 1


@pytest.mark.server
def test_the_dashboard_asks_only_for_what_is_exported(gateway):
    gateway.wait_for(gateway.create(nlq=" ", cols="a")["id"], "failed")  # each family has a sample after one failure
    exported = {family.name for family in text_string_to_metric_families(gateway.client.get("/metrics").text)}
    targets = [target for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    names = {name for target in targets for name in re.findall(r"\b(?:vllm:|gateway_)\w+", target["expr"])}
    assert len(names) > 15
    assert {re.sub(r"_(total|bucket)$", "", name) for name in names} - exported == set()


def test_what_a_server_reports_cannot_break_or_flood_the_metrics():
    meters = Meters("local/model")
    for number in range(200):
        failed = ended(error_type=f"Error{number}", input_token_count=-5, output_token_count="many")
        count_ended(replace(failed, status=Status.FAILED), meters)
    samples = {key: value for key, value in parsed(text_of(meters)).items() if not key[0].endswith("_created")}
    kinds = [key for key in samples if key[0] == "gateway_prediction_failures_total"]
    assert len(kinds) == 41
    assert total(samples, "gateway_prediction_failures_total") == 200
    assert total(samples, "gateway_prediction_failures_total", type="other") == 160
    assert total(samples, "vllm:prompt_tokens_total") == total(samples, "vllm:generation_tokens_total") == 0


def ended(**metrics: object) -> Prediction:
    return Prediction("x", "m", "v", {}, "2026-01-01T00:00:00.000000Z", Status.SUCCEEDED, metrics=metrics)


def test_drafts_are_counted_by_kind():
    meters = Meters("local/model")
    count_ended(ended(drafted_by_kind={"forced": 5, "model": 8}, accepted_by_kind={"forced": 5}), meters)
    count_ended(ended(drafted_by_kind={"model": 2}, accepted_by_kind={"model": 1}), meters)
    samples = parsed(text_of(meters))
    for kind, drafted, accepted in (("forced", 5, 5), ("model", 10, 1)):
        assert total(samples, "gateway_draft_tokens_total", kind=kind) == drafted
        assert total(samples, "gateway_accepted_tokens_total", kind=kind) == accepted


def test_strange_counts_by_kind_are_ignored_and_their_labels_bounded():
    meters = Meters("local/model")
    count_ended(ended(drafted_by_kind=[3], accepted_by_kind={}), meters)
    strange = {"a b": 3, "model": -2, "forced": "many"}
    count_ended(ended(drafted_by_kind=strange, accepted_by_kind={"model": True}), meters)
    assert total(parsed(text_of(meters)), "gateway_draft_tokens_total") == 0
    count_ended(ended(drafted_by_kind={f"kind{n}": 1 for n in range(200)}, accepted_by_kind={}), meters)
    kinds = [key for key in parsed(text_of(meters)) if key[0] == "gateway_draft_tokens_total"]
    assert len(kinds) <= 41
    assert total(parsed(text_of(meters)), "gateway_draft_tokens_total") == 200


def text_of(meters: Meters) -> str:
    return generate_latest(meters.registry).decode()
