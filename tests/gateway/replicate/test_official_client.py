"""The official Python client, with only its base address set, against the gateway and a real Cog server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import replicate
from replicate.exceptions import ModelError, ReplicateError

from tests.gateway.gateway_server import MODEL, GatewayServer
from tests.gateway.replicate.answers import asked
from tests.gateway.started_cog import SLOWER

pytestmark = pytest.mark.server


@pytest.fixture
def client(gateway: GatewayServer) -> Iterator[replicate.Client]:
    client = replicate.Client(base_url=gateway.url, api_token="any", timeout=60)
    with client._client:  # it has no close of its own
        yield client


@pytest.fixture
def reference(client: replicate.Client) -> str:
    return f"{MODEL}:{client.models.get(MODEL).latest_version.id}"


def inputs(question: str) -> dict[str, str]:
    return {"nlq": question, "cols": "a,b"}


def test_run_gives_the_pieces_by_model_and_an_iterator_by_version(client, reference):
    output = client.run(MODEL, input=inputs("how many?"))
    assert len(output) > 5
    assert asked(output) == "how many?"
    output = client.run(reference, input=inputs(SLOWER), wait=1)  # after a second the client polls
    assert not isinstance(output, list)
    assert asked(output) == SLOWER


def test_stream_gives_the_pieces_in_order(client, reference):
    for target in (reference, MODEL):
        events = list(client.stream(target, input=inputs("one, two?")))
        assert events[-1].event.value == "done"
        assert len(events) > 5
        assert asked(str(event) for event in events) == "one, two?"


async def test_the_asynchronous_client_runs_and_streams(gateway, reference):
    client = replicate.Client(base_url=gateway.url, api_token="any")
    async with client._async_client:
        first, second = await asyncio.gather(
            client.async_run(MODEL, input=inputs("first?")), client.async_run(MODEL, input=inputs("second?"))
        )
        assert (asked(first), asked(second)) == ("first?", "second?")
        stream = await client.async_stream(reference, input=inputs("streamed?"))
        assert asked([str(event) async for event in stream]) == "streamed?"


def test_a_prediction_is_created_polled_cancelled_and_stays_cancelled(client, reference):
    prediction = client.predictions.create(version=reference.partition(":")[2], input=inputs(SLOWER))
    assert prediction.status == "starting"
    while not prediction.output:
        prediction.reload()
    assert prediction.status == "processing"
    prediction.cancel()
    assert prediction.status == "canceled"
    again = client.predictions.get(prediction.id)
    assert (again.status, again.error) == ("canceled", None)
    assert again.output, "what was written before stays"


def test_what_the_model_or_its_schema_refuses_is_an_error_that_says_why(client):
    with pytest.raises(ModelError, match="nlq: is blank"):
        client.run(MODEL, input=inputs(" "))
    with pytest.raises(ReplicateError) as caught:
        client.run(MODEL, input={"nlq": 5, "cols": "a"})
    assert caught.value.status == 422
    assert "input.nlq: 5 is not of type" in caught.value.detail


def test_pages_of_predictions_begin_with_the_newest(client):
    created = [client.predictions.create(version=MODEL, input=inputs(f"number {n}?")).id for n in range(3)]
    assert [prediction.id for prediction in client.predictions.list().results][:3] == created[::-1]
