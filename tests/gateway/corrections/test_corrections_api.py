"""Corrections over HTTP: proposed, checked, seen by whom they concern, decided by admins, kept for good."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import httpx
import pytest

from gateway.corrections.correction_file import CorrectionFile
from gateway.keys.key_file import KeyFile
from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import bearer, create, make_keys, open_app

PATH = "/v1/corrections"
FAILED = {"status": "failed", "output": None}
CHECKED = {"metrics": {"checked_answer": True}}


async def propose(
    client: httpx.AsyncClient, prediction: dict[str, Any], key: str = "", **fields: Any
) -> httpx.Response:
    headers = bearer(key) if key else {}
    return await client.post(PATH, json={"prediction": prediction["id"], **fields}, headers=headers)


def wrong_fields(response: httpx.Response) -> list[str]:
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return [field["field"] for field in response.json()["invalid_fields"]]


async def test_a_correction_outlives_its_prediction_and_the_gateway(tmp_path):
    async with FakeCog() as cog:
        async with open_app(tmp_path, cog, weights_digest="d" * 64) as client:
            prediction = await create(client)
            created = await propose(client, prediction, wanted={"a": ["b"]}, note="why")
            assert created.status_code == 201, created.text
            correction = created.json()
            assert correction | {"id": "", "created_at": ""} == {
                **{"id": "", "created_at": "", "kind": "correction", "state": "proposed", "shared": False},
                **{"input": prediction["input"], "given": "abc", "wanted": '{"a": ["b"]}', "note": "why"},
                **{"prediction": prediction["id"], "model": "local/model", "version": prediction["version"]},
                **{"adapter": None, "owner": None, "decided_by": None, "decided_at": None},
            }
            assert (await client.delete(f"/v1/predictions/{prediction['id']}")).status_code == 204
        async with open_app(tmp_path, cog) as client:
            address = f"{PATH}/{correction['id']}"
            assert (await client.get(address)).json() == correction
            accepted = (await client.patch(address, json={"state": "accepted"})).json()
            assert (accepted["state"], accepted["decided_at"] > accepted["created_at"]) == ("accepted", True)
            assert (await client.get(PATH)).json() == {"next": None, "results": [accepted]}
            assert (await client.delete(address)).status_code == 204
            assert (await client.get(address)).status_code == (await client.delete(address)).status_code == 404
    assert (tmp_path / "corrections.sqlite").stat().st_mode & 0o077 == 0


async def test_each_kind_asks_for_what_it_needs(tmp_path):
    async with FakeCog(held=True) as cog, open_app(tmp_path, cog) as client:
        running = (await client.post("/v1/models/local/model/predictions", json={"input": {"text": "a"}})).json()
        assert wrong_fields(await propose(client, running, kind="report")) == ["prediction"]
        cog.gate.set()
        ended = await create(client)
        example = await propose(client, ended, kind="example")
        assert (example.status_code, example.json()["wanted"], example.json()["given"]) == (201, "abc", "abc")
        report = await propose(client, ended, kind="report", note="the wrong column")
        assert (report.status_code, report.json()["wanted"]) == (201, None)
        for fields, wrong in (
            ({}, "wanted"),
            ({"wanted": "abc"}, "wanted"),
            ({"kind": "report", "wanted": "x"}, "wanted"),
            ({"kind": "praise"}, "kind"),
            ({"wanted": "x", "note": "n" * 2001}, "note"),
            ({"wanted": "x", "state": "rejected"}, "state"),
            ({"wanted": "x", "mood": "bad"}, "mood"),
        ):
            assert wrong_fields(await propose(client, ended, **fields)) == [wrong]
        assert wrong_fields(await propose(client, {"id": "none"}, wanted="x")) == ["prediction"]
        assert wrong_fields(await client.get(PATH, params={"state": "good"})) == ["state"]
        (kept,) = (await client.get(PATH, params={"kind": "report"})).json()["results"]
        assert kept == report.json()


async def test_a_wrong_answer_is_refused_and_a_right_one_is_as_the_model_writes_it(
    tmp_path,
):
    async with FakeCog(pieces=("given",)) as cog, open_app(tmp_path, cog) as client:
        prediction = await create(client)
        cog.pieces, cog.end = ("as", " written"), CHECKED
        asked = {"prediction": prediction["id"], "wanted": "as  written"}
        good = (await client.post(f"{PATH}/check", json=asked)).json()
        assert good == {"valid": True, "wanted": "as written", "problem": None}
        head, body = cog.requests[-1]
        assert (body["input"], body["context"]) == (prediction["input"], {"check_answer": "as  written"})
        assert "as  written" not in head
        assert (await propose(client, prediction, wanted="as  written")).json()["wanted"] == "as written"
        cog.end = CHECKED | {
            "status": "failed",
            "output": None,
            "error": "Prediction failed: OutputError: a column, sadly",
        }
        bad = (await client.post(f"{PATH}/check", json=asked)).json()
        assert bad == {"valid": False, "wanted": None, "problem": "a column, sadly"}
        refused = await propose(client, prediction, wanted="x")
        assert wrong_fields(refused) == ["wanted"]
        assert refused.json()["detail"] == "- wanted: a column, sadly"
        cog.end = {}  # a server of an earlier version writes an answer
        assert (await client.post(f"{PATH}/check", json=asked)).json() == {
            **good,
            "valid": None,
            "wanted": "as  written",
        }
        cog.end = FAILED | {"error": "out of memory"}
        assert (await propose(client, prediction, wanted="x")).status_code == 503
        assert len((await client.get("/v1/predictions")).json()["results"]) == 1, "checks are no predictions"


async def test_a_key_sees_its_own_and_the_shared_ones_and_only_an_admin_decides(tmp_path):
    alice, bob = make_keys(tmp_path, "alice", "bob").values()
    with closing(KeyFile(tmp_path / "keys.sqlite")) as file:
        admin = file.create("admin", is_admin=True)

    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required") as client:

        async def seen(key: str) -> list[str]:
            results = (await client.get(PATH, headers=bearer(key))).json()["results"]
            return [one["note"] for one in results]

        prediction = await create(client, bearer(alice))
        correction = (await propose(client, prediction, alice, wanted="x", note="alice's")).json()
        assert correction["owner"] == "alice"
        assert wrong_fields(await propose(client, prediction, bob, wanted="x")) == ["prediction"]
        assert (await propose(client, prediction, alice, wanted="x", state="accepted")).status_code == 403
        address = f"{PATH}/{correction['id']}"
        assert ([*await seen(alice), *await seen(admin)], await seen(bob)) == (["alice's"] * 2, [])
        for method in ("GET", "DELETE"):
            assert (await client.request(method, address, headers=bearer(bob))).status_code == 404
        for key, status in ((bob, 404), (alice, 403), ("", 401), (admin, 200)):
            answer = await client.patch(address, json={"state": "accepted"}, headers=bearer(key))
            assert (answer.status_code, answer.headers["content-type"].startswith("application/")) == (status, True)
        assert answer.json()["decided_by"] == "admin"
        assert await seen(bob) == [], "accepted is not shared"
        await client.patch(address, json={"shared": True}, headers=bearer(admin))
        assert await seen(bob) == ["alice's"]
        assert (await client.delete(address, headers=bearer(bob))).status_code == 404, "seen, but not bob's"
        assert (await client.get(f"/v1/predictions/{prediction['id']}", headers=bearer(admin))).status_code == 404
        assert (await client.delete(address, headers=bearer(alice))).status_code == 204


async def test_pages_lead_to_older_ones_and_keep_their_filters(tmp_path):
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        prediction = await create(client)
        for number in range(102):
            await propose(client, prediction, kind="report", note=str(number))
        first = (await client.get(PATH, params={"kind": "report"})).json()
        second = (await client.get(first["next"])).json()
        assert "kind=report" in first["next"]
        notes = [one["note"] for page in (first, second) for one in page["results"]]
        assert (notes, second["next"]) == ([str(number) for number in reversed(range(102))], None)
        assert (await client.get(PATH, params={"cursor": "x"})).status_code == 400


async def test_a_page_of_another_site_can_neither_propose_nor_decide(tmp_path):
    site = {"Origin": "https://example.com"}
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        prediction = await create(client)
        correction = (await propose(client, prediction, wanted="x")).json()
        body = {"prediction": prediction["id"], "wanted": "x"}
        assert (await client.post(PATH, json=body, headers=site)).status_code == 403
        for method in ("PATCH", "DELETE"):
            refused = await client.request(
                method, f"{PATH}/{correction['id']}", json={"state": "accepted"}, headers=site
            )
            assert refused.status_code == 403
        assert (await client.get(PATH)).json()["results"] == [correction]


async def test_a_gateway_that_keeps_nothing_keeps_no_corrections(tmp_path):
    async with FakeCog() as cog, open_app(tmp_path, cog, keep=False) as client:
        refused = await propose(client, await create(client), wanted="x")
        assert (refused.status_code, "GATEWAY_KEEP" in refused.json()["detail"]) == (403, True)
    assert list(tmp_path.glob("corrections*")) == []


@pytest.mark.server
def test_a_real_server_checks_an_answer_without_generating(gateway):
    prediction = gateway.create(nlq="how many?", cols="['a', 'b']")
    gateway.wait_for(prediction["id"], "succeeded")

    def check(wanted: str) -> dict[str, Any]:
        body = {"prediction": prediction["id"], "wanted": wanted}
        return gateway.client.post(f"{PATH}/check", json=body).json()

    wanted = '{\n  "calculations": [{"op": "COUNT"}],\n  "breakdowns": ["b"]\n}'
    canonical = '{"breakdowns": ["b"], "calculations": [{"op": "COUNT"}]}'
    assert check(wanted) == {"valid": True, "wanted": canonical, "problem": None}
    wrong = check('{"breakdowns": ["c"]}')
    assert wrong["valid"] is False and wrong["problem"].startswith("breakdowns[0]"), wrong
    created = gateway.client.post(PATH, json={"prediction": prediction["id"], "wanted": wanted})
    assert (created.status_code, json.loads(created.json()["wanted"])["breakdowns"]) == (201, ["b"])
    with closing(CorrectionFile(gateway.folder / "corrections.sqlite")) as file:
        assert file.get(created.json()["id"]).wanted == canonical
