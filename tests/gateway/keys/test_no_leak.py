"""Random requests of others, with a key and without: nothing of one owner's predictions is in any answer."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.gateway.fake_cog import FakeCog
from tests.gateway.fuzzed_requests import PIECES, FuzzedRequest, is_error
from tests.gateway.gateway_server import MODEL
from tests.gateway.open_app import bearer, make_keys, open_app
from tests.gateway.running import until

NUM_REQUESTS = 5000
AT_ONCE = 20
URL = "http://localhost:8080"  # with a port, which redirects need
CREATE = f"/v1/models/{MODEL}/predictions"


async def test_fuzzed_requests_of_others_show_nothing_of_a_prediction(tmp_path):
    """Alice has an ended and a running prediction whose ids others know, and the same again as a secret."""
    alice, bob = make_keys(tmp_path, "alice", "bob").values()
    rng = random.Random(20)
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required", model=MODEL) as client:
        contents: dict[str, set[str]] = {}  # secret texts by prediction
        gates = []

        async def see(prediction_id: str) -> dict[str, Any]:
            return (await client.get(f"/v1/predictions/{prediction_id}", headers=bearer(alice))).json()

        async def has_output() -> bool:
            return bool((await see(prediction_id))["output"])

        for name in "abcd":
            cog.pieces, cog.gate = (f"secret-output-{name}", "end"), asyncio.Event()
            gates.append(cog.gate)
            if name in "ab":
                cog.gate.set()
            body = {"input": {"text": f"secret-input-{name}"}, "webhook": f"http://127.0.0.1:9/secret-hook-{name}"}
            prediction_id = (await client.post(CREATE, json=body, headers=bearer(alice))).json()["id"]
            contents[prediction_id] = {f"secret-input-{name}", f"secret-output-{name}"}
            await until(has_output)
            if name in "ab":  # until it has ended
                await client.get(f"/v1/predictions/{prediction_id}/stream", headers=bearer(alice))
        ended, hidden_ended, running, hidden_running = contents
        cog.pieces, cog.gate = ("not", "secret"), asyncio.Event()
        cog.gate.set()  # for the others' predictions
        known, hidden = (ended, running), {hidden_ended, hidden_running}
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
                others = set().union(*contents.values()) - contents[own]
                secrets = {"secret-hook", alice, *hidden, *others}
            text = response.text + str(response.headers)
            assert [secret for secret in secrets if secret in text] == [], said

        for start in range(0, NUM_REQUESTS, AT_ONCE):
            await asyncio.gather(*map(check, range(start, start + AT_ONCE)))
        assert {200, 201, 401, 403, 404, 422} <= statuses, "many kinds of answers were seen"
        for prediction_id, content in contents.items():
            seen = await see(prediction_id)
            assert seen["status"] == ("processing" if prediction_id in (running, hidden_running) else "succeeded")
            assert content == {seen["input"]["text"], seen["output"][0]}, "the owner sees it"
        for gate in gates:
            gate.set()


def opened(path: str, known: tuple[str, ...]) -> str | None:
    """The prediction of a path that is open to everybody who has its link."""
    return next((one for one in known if path in (f"/p/{one}", f"/v1/predictions/{one}/stream")), None)
