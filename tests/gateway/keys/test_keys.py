"""API keys: made and revoked by a command, asked for by every API, with limits and predictions of their own."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import httpx
import pytest
from typer.testing import CliRunner

from gateway.keys.callers import Caller
from gateway.keys.command import app
from gateway.keys.key_file import ApiKey, KeyFile, KeyNameError
from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import BODY, CREATE, bearer, open_app


@pytest.fixture
def keys(tmp_path):
    with closing(KeyFile(tmp_path / "keys.sqlite")) as file:
        yield file


async def create(client: httpx.AsyncClient, key: str) -> httpx.Response:
    return await client.post(CREATE, json=BODY, headers=bearer(key))


async def test_without_a_valid_key_there_is_no_answer(tmp_path, keys):
    good, revoked = keys.create("alice"), keys.create("bob")
    keys.revoke("bob")
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required") as client:
        for headers in ({}, bearer("any"), bearer(revoked), bearer(good[:-1] + "~"), {"Authorization": "Basic eDp5"}):
            response = await client.post(CREATE, json=BODY, headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["title"] == "Unauthorized", "in the shape of the API that was called"
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/health")).status_code == (await client.get("/ready")).status_code == 200
        for scheme in ("Bearer", "Token", "bearer"):
            headers = {"Authorization": f"{scheme} {good}"}
            assert (await client.get("/v1/predictions", headers=headers)).status_code == 200
        keys.revoke("alice")
        assert (await client.get("/v1/predictions", headers=bearer(good))).status_code == 401, "at once"
        assert cog.asked == []


async def test_a_prediction_is_seen_only_with_the_key_that_made_it(tmp_path, keys):
    alice, bob = keys.create("alice"), keys.create("bob")
    async with FakeCog(held=True) as cog, open_app(tmp_path, cog, keys="required") as client:
        first = (await create(client, alice)).json()["id"]  # runs until the gate opens
        for _ in range(2):
            address = f"/v1/predictions/{first}"
            for method, path in (("GET", address), ("DELETE", address), ("POST", f"{address}/cancel")):
                assert (await client.request(method, path, headers=bearer(bob))).status_code == 404, path
            shown = await client.get("/v1/predictions", headers=bearer(bob))
            assert shown.json() == {"previous": None, "next": None, "results": []}
            assert (await client.get(address, headers=bearer(alice))).status_code == 200
            cog.gate.set()
            await client.get(f"{address}/stream", headers=bearer(alice))  # now it has ended and is in the database
        listed = (await client.get("/v1/predictions", headers=bearer(alice))).json()["results"]
        assert [(one["id"], one["status"]) for one in listed] == [(first, "succeeded")]
        keys.revoke("alice")
        again = await client.get(f"/v1/predictions/{first}", headers=bearer(keys.create("alice")))
        assert again.status_code == 200, "a new key of the same name replaces the old one"


async def test_callers_have_different_secrets_for_webhooks(tmp_path, keys):
    """With one for all, a caller could sign for others."""
    of = {name: bearer(keys.create(name)) for name in ("alice", "bob")}
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required") as client:
        path = "/v1/webhooks/default/secret"
        found = [(await client.get(path, headers=of[name])).json()["key"] for name in ("alice", "bob", "alice")]
    assert found[0] == found[2] != found[1]
    assert all(key.startswith("whsec_") for key in found)


async def test_a_link_to_a_prediction_needs_no_key(tmp_path, keys):
    key = keys.create("alice")
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required") as client:
        prediction_id = (await create(client, key)).json()["id"]
        for path in (f"/p/{prediction_id}", f"/v1/predictions/{prediction_id}/stream"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get(f"/v1/predictions/{prediction_id}")).status_code == 401


async def test_limits_of_a_key_are_429_with_the_time_to_wait(tmp_path, keys):
    few, rare, free = keys.create("few", concurrent=1), keys.create("rare", per_minute=2), keys.create("free")
    async with FakeCog(held=True) as cog, open_app(tmp_path, cog, keys="required") as client:
        assert (await create(client, few)).status_code == 201
        refused = await create(client, few)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "few may have 1 predictions at the same time" in refused.json()["detail"]
        assert [(await create(client, rare)).status_code for _ in range(3)] == [201, 201, 429]
        refused = await create(client, rare)
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert (await create(client, free)).status_code == 201, "others are not held up"


def test_a_bucket_fills_with_time(monkeypatch):
    time = 0.0
    monkeypatch.setattr("gateway.keys.callers.time.monotonic", lambda: time)
    caller = Caller(ApiKey("id", "alice", 60, None, "", None))
    for _ in range(60):
        caller.take(0)
    for _ in range(3):
        with pytest.raises(Exception, match="wait 1 seconds"):
            caller.take(0)
        time += 1.0
        caller.take(0)


async def test_a_browser_gives_its_key_once_and_no_script_or_other_site_gets_it(tmp_path, keys):
    key = keys.create("alice")
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required") as client:
        assert (await client.get("/")).headers["location"] == "/login"
        assert (await client.get("/login")).status_code == 200
        wrong = await client.post("/login", data={"key": "<b>"})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        right = await client.post("/login", data={"key": key})
        assert (right.status_code, right.headers["location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=strict"} <= set(right.headers["set-cookie"].split("; "))
        assert (await client.get("/v1/predictions")).status_code == 200, "the client has kept the cookie"


def test_a_key_is_not_in_its_file(tmp_path, keys):
    key = keys.create("alice")
    keys.close()
    assert not any(key[15:].encode() in path.read_bytes() for path in tmp_path.iterdir())
    assert (tmp_path / "keys.sqlite").stat().st_mode & 0o077 == 0


def test_names_that_cannot_be_used_are_refused(keys):
    keys.create("alice")
    for name, message in (("alice", "has a key"), ("a b", "is not a name"), ("", "is not a name")):
        with pytest.raises(KeyNameError, match=message):
            keys.create(name)
    with pytest.raises(KeyNameError, match="no key has the name"):
        keys.revoke("bob")


def test_the_command_creates_lists_and_revokes(tmp_path, keys, monkeypatch):
    monkeypatch.setenv("GATEWAY_DATABASE", str(tmp_path / "gateway.sqlite"))
    runner = CliRunner()
    key = runner.invoke(app, ["create", "alice", "--rate", "60/min", "--concurrent", "4"]).stdout.strip()
    found = keys.find(key)
    assert (found.name, found.per_minute, found.concurrent) == ("alice", 60, 4)
    assert not found.is_admin
    assert runner.invoke(app, ["create", "bob", "--rate", "0"]).exit_code == 2
    assert keys.find(runner.invoke(app, ["create", "carol", "--admin"]).stdout.strip()).is_admin
    assert runner.invoke(app, ["revoke", "alice"]).exit_code == 0
    assert keys.find(key) is None
    shown = runner.invoke(app, ["list"]).stdout
    assert "alice" in shown
    assert key[15:] not in shown


async def test_a_gateway_with_keys_that_others_reach_answers_to_any_name(tmp_path, keys):
    """A site that has its name lead here gets no answers: browsers do not send it the key of another name."""
    key = keys.create("alice")
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required", host="0.0.0.0") as client:
        name = {"Host": "gateway.company.example"}
        assert (await client.get("/v1/predictions", headers={**bearer(key), **name})).status_code == 200
        assert (await client.get("/v1/predictions", headers=name)).status_code == 401


def test_a_file_of_an_earlier_version_has_no_admins_until_one_is_made(tmp_path):
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as old:
        old.execute(
            "CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, digest BLOB NOT NULL, per_minute REAL, "
            "concurrent INTEGER, created_at TEXT NOT NULL, revoked_at TEXT)"
        )
        old.execute("INSERT INTO keys VALUES ('a', 'alice', x'00', NULL, NULL, '2026', NULL)")
        old.commit()
    for _ in range(2):
        with closing(KeyFile(tmp_path / "old.sqlite")) as file:
            admin = file.create(f"admin-{len(file.all())}", is_admin=True)
            assert file.find(admin).is_admin
            assert [key.is_admin for key in file.all()][:2] == [False, True]
