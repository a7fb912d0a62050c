"""Cog's protocol at the gateway, in front of a fake of Cog."""

from __future__ import annotations

import pytest

from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import bearer, create, make_keys, open_app

INPUT = {"input": {"text": "a"}}


@pytest.fixture
async def hook(tmp_path, receiver):
    """The gateway's client, and the address that Cog gets in place of the receiver's."""
    async with FakeCog() as cog, open_app(tmp_path, cog, port=4321) as client:
        await client.put("/predictions/a", json={**INPUT, "webhook": receiver.url})
        yield client, cog.requests[-1][1]["webhook"]


async def test_a_webhook_of_cog_goes_through_the_gateway(hook, receiver):
    client, address = hook
    assert address.startswith("http://127.0.0.1:4321/cog-webhooks?")
    receiver.statuses = [200, 503]
    answers = [await client.post(address, json={"id": "a"}, headers={"traceparent": "00-1"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 503]
    for _ in answers:
        path, headers, body = receiver.received.get(timeout=60)
        assert (path, body, headers["traceparent"]) == ("/hook", '{"id":"a"}', "00-1")


async def test_a_redirect_of_a_webhook_is_not_followed(hook, receiver):
    """Cog follows them, and one that leads to its own /shutdown ends it."""
    client, address = hook
    receiver.statuses = [307]
    answer = await client.post(address, json={})
    assert (answer.status_code, answer.json()["detail"]) == (502, "the webhook was not sent: answered 307")
    assert receiver.received.qsize() == 1


async def test_only_cog_can_have_a_webhook_sent(hook, receiver):
    client, address = hook
    for wrong in (address.replace("hook&", "hooks&"), address[:-1], address.partition("?")[0]):
        assert (await client.post(wrong, json={})).status_code == 404
    assert receiver.received.empty()


async def test_cog_s_refusals_keep_their_status(tmp_path):
    async with FakeCog(full=True) as cog, open_app(tmp_path, cog) as client:
        answer = await client.put("/predictions/a", json=INPUT)
        assert (answer.status_code, answer.json()) == (409, {"error": "At capacity"})
        await cog.stop()
        answer = await client.post("/predictions/a/cancel")
        assert (answer.status_code, answer.json()["detail"]) == (
            503,
            "Cog's server does not answer: nothing listens at its address",
        )


async def test_an_id_stays_one_part_of_the_path(tmp_path):
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        await client.post("/predictions/a%3Fb%23c%20d/cancel")
        assert cog.paths[-1] == "/predictions/a%3Fb%23c%20d/cancel"


async def test_with_several_servers_there_is_no_protocol_of_cog(tmp_path):
    async with FakeCog() as one, FakeCog() as two, open_app(tmp_path, one, two) as client:
        answer = await client.post("/predictions", json=INPUT)
        assert (answer.status_code, "use /v1/predictions" in answer.json()["detail"]) == (404, True)
        assert one.asked == two.asked == []


async def test_with_keys_nobody_gets_around_them_in_cog_s_protocol(tmp_path):
    """Cog knows neither owners nor limits: with an id from a link, it would cancel another caller's prediction."""
    keys = make_keys(tmp_path, "alice", "bob")
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required") as client:
        own = await create(client, bearer(keys["alice"]))
        asked = len(cog.paths)
        for method, path in (
            ("POST", f"/predictions/{own['id']}/cancel"),
            ("PUT", f"/predictions/{own['id']}"),
            ("POST", "/predictions"),
        ):
            answer = await client.request(method, path, json=INPUT, headers=bearer(keys["bob"]))
            assert (answer.status_code, "knows no keys" in answer.text) == (404, True)
        assert not [path for path in cog.paths[asked:] if path.startswith("/predictions")]
        assert (await client.get("/health-check", headers=bearer(keys["bob"]))).json()["status"] == "READY"
        assert (await client.get("/health-check")).status_code == 401
