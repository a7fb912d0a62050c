"""Webhooks as a receiver gets them from a gateway in front of a real Cog server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from replicate.webhook import InvalidSignatureError, Webhooks, WebhookSigningSecret

from tests.gateway.gateway_server import GatewayServer
from tests.gateway.started_cog import SLOWER, SLOWEST

pytestmark = pytest.mark.server


def create(gateway: GatewayServer, question: str, **fields: Any) -> str:
    return gateway.post(input={"nlq": question, "cols": "a"}, **fields).json()["id"]


def test_all_events_arrive_and_the_last_one_has_everything(gateway, receiver):
    prediction_id = create(gateway, SLOWER, webhook=receiver.url)
    events = receiver.until_completed()
    assert {event["id"] for event in events} == {prediction_id}
    assert events[0]["status"] == "processing", "the start"
    assert len(events) > 2, "output while it runs"
    lengths = [len(event["output"] or []) for event in events]
    assert lengths == sorted(lengths)
    assert events[-1] == gateway.get(prediction_id)


def test_only_the_wanted_event_is_sent_with_a_signature_that_the_official_client_checks(gateway, receiver):
    create(gateway, "short?", webhook_completed=receiver.url)
    assert len(receiver.until_completed()) == 1
    create(gateway, "short?", webhook=receiver.url, webhook_events_filter=["completed"])
    _, headers, body = receiver.received.get(timeout=90)
    assert json.loads(body)["status"] == "succeeded"
    secret = gateway.client.get("/v1/webhooks/default/secret").json()["key"]
    tolerated = {"headers": headers, "tolerance": 600}
    Webhooks.validate(body=body, secret=WebhookSigningSecret(key=secret), **tolerated)
    for wrong_body, key in ((body + " ", secret), (body, "whsec_" + "A" * 32)):
        with pytest.raises(InvalidSignatureError):
            Webhooks.validate(body=wrong_body, secret=WebhookSigningSecret(key=key), **tolerated)


def test_the_end_is_sent_again_with_the_same_id_until_it_is_taken_and_redirects_are_not_followed(gateway, receiver):
    receiver.statuses = [500, 302]
    create(gateway, "short?", webhook=receiver.url, webhook_events_filter=["completed"])
    attempts = [receiver.received.get(timeout=90) for _ in range(3)]
    assert {path for path, _, _ in attempts} == {"/hook"}
    assert len({headers["webhook-id"] for _, headers, _ in attempts}) == 1


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"webhook": "ftp://example.com"}, "webhook", "is not an address"),
        ({"webhook": "http://[::1"}, "webhook", "is not an address"),
        ({"webhook": "http://example.com:99999999/"}, "webhook", "is not an address"),
        ({"webhook": 5}, "webhook", "valid string"),
        ({"webhook": "https://a.b", "webhook_events_filter": ["end"]}, "webhook_events_filter.0", "'start', 'output'"),
    ],
)
def test_a_wrong_webhook_is_refused_by_name(gateway, fields, field, message):
    response = gateway.post(input={"nlq": "a", "cols": "a"}, **fields)
    assert response.status_code == 422
    (wrong,) = response.json()["invalid_fields"]
    assert wrong["field"] == field
    assert message in wrong["description"]


def test_a_gateway_that_stops_tells_the_caller_what_it_ended(cog, tmp_path, receiver):
    with GatewayServer([cog.url], tmp_path, DRAIN_SECONDS=0) as gateway:
        wanted = {"webhook": receiver.url, "webhook_events_filter": ["completed"]}
        prediction_id = create(gateway, SLOWEST, **wanted)
        gateway.wait_for(prediction_id, "processing")
    told = receiver.next()
    assert (told["id"], told["status"]) == (prediction_id, "failed")
    assert told["error"].startswith("interrupted")
