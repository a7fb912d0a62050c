"""Random requests of others, with a key and without: nothing of one owner's predictions is in any answer."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing
from typing import Any

import httpx

from gateway.keys.key_file import KeyFile
from tests.gateway.door_server import MODEL
from tests.gateway.fake_cog import FakeCog
from tests.gateway.fuzzed_requests import PIECES, FuzzedRequest, is_error
from tests.gateway.open_app import open_app

NUM_REQUESTS = 5000
AT_ONCE = 20
URL = "http://localhost:8080"  # with a port, which redirects need
CREATE = f"/v1/models/{MODEL}/predictions"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class Owner:
    """Alice with her predictions: one ended and one running whose ids others know, and the same again as a secret."""

    def __init__(self, client: httpx.AsyncClient, key: str) -> None:
        self.client = client
        self.headers = bearer(key)
        self.contents: dict[str, set[str]] = {}  # secret texts by prediction
        self.running: list[str] = []
        self.ended: list[str] = []

    async def create(self, cog: FakeCog, name: str, *, runs: bool) -> None:
        """Start a prediction, which ends unless it is to run."""
        cog.pieces = (f"secret-output-{name}", "end")
        cog.gate = asyncio.Event()
        if not runs:
            cog.gate.set()
        body = {"input": {"text": f"secret-input-{name}"}, "webhook": f"{cog.url}/secret-hook-{name}"}
        headers = self.headers | ({} if runs else {"Prefer": "wait"})
        prediction_id = (await self.client.post(CREATE, json=body, headers=headers)).json()["id"]
        self.contents[prediction_id] = {f"secret-input-{name}", f"secret-output-{name}"}
        (self.running if runs else self.ended).append(prediction_id)
        while not (await self.see(prediction_id))["output"]:
            await asyncio.sleep(0.01)

    async def see(self, prediction_id: str) -> dict[str, Any]:
        return (await self.client.get(f"/v1/predictions/{prediction_id}", headers=self.headers)).json()


async def test_5000_fuzzed_requests_of_others_show_nothing_of_a_prediction(tmp_path):
    with closing(KeyFile(tmp_path / "keys.sqlite")) as file:
        alice, bob = file.create("alice"), file.create("bob")
    rng = random.Random(20)
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required", model=MODEL) as client:
        owner, gates = Owner(client, alice), []
        for name, runs in (("a", False), ("b", False), ("c", True), ("d", True)):
            await owner.create(cog, name, runs=runs)
            gates.append(cog.gate)
        cog.pieces, cog.gate = ("not", "secret"), asyncio.Event()
        cog.gate.set()  # for the others' predictions
        known, hidden = (owner.ended[0], owner.running[0]), {owner.ended[1], owner.running[1]}
        pieces = (*PIECES, *known * 8)
        statuses = set()

        async def check(number: int) -> None:
            request = FuzzedRequest.random(rng, {"text": "a"}, pieces, Authorization=(f"Bearer {bob}", f"Token {bob}"))
            if request.path == f"/v1/predictions/{known[1]}/stream":
                return  # it would last until the end of the prediction
            response = await client.request(**request.arguments(URL))
            statuses.add(response.status_code)
            said = (number, request.method, request.path, response.status_code, response.text[:300])
            assert response.status_code < 500, said
            if response.status_code >= 400 and request.method != "HEAD":
                assert is_error(response), said
            secrets = {"secret-", alice, *hidden}
            if (own := opened(request.path, known)) is not None:
                others = set().union(*owner.contents.values()) - owner.contents[own]
                secrets = {"secret-hook", alice, *hidden, *others}
            text = response.text + str(response.headers)
            assert [secret for secret in secrets if secret in text] == [], said

        for start in range(0, NUM_REQUESTS, AT_ONCE):
            await asyncio.gather(*map(check, range(start, start + AT_ONCE)))
        assert {200, 201, 401, 403, 404, 422} <= statuses, "many kinds of answers were seen"
        for prediction_id in owner.contents:
            seen = await owner.see(prediction_id)
            assert seen["status"] == ("processing" if prediction_id in owner.running else "succeeded")
            assert owner.contents[prediction_id] == {seen["input"]["text"], seen["output"][0]}, "the owner sees it"
        for gate in gates:
            gate.set()


def opened(path: str, known: tuple[str, ...]) -> str | None:
    """The prediction of a path that is open to everybody who has its link."""
    return next((one for one in known if path in (f"/p/{one}", f"/v1/predictions/{one}/stream")), None)
