"""Replicate's API over plain HTTP, where the official client would hide what is tested."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from gateway.app import create_app
from gateway.door import open_door
from gateway.predictions import Prediction, Status, new_id, now
from gateway.settings import DoorSettings
from tests.gateway.door_server import MODEL, DoorServer
from tests.gateway.fake_cog import FakeCog
from tests.gateway.started_cog import CONCURRENCY, SLOW, SLOWER

pytestmark = pytest.mark.server
PREDICTIONS = f"/v1/models/{MODEL}/predictions"


def create(door: DoorServer, question: str = "short?", **headers: str) -> httpx.Response:
    return door.client.post(PREDICTIONS, json={"input": {"nlq": question, "cols": "a"}}, headers=headers)


def read_events(response: httpx.Response, stop_after: int | None = None) -> list[dict[str, str]]:
    """Events with event, id and data, as the EventSource standard reads them; at most `stop_after` of them."""
    events: list[dict[str, str]] = []
    current: dict[str, str] = {}
    for line in response.iter_lines():
        if not line and current:
            events.append(current)
            current = {}
            if len(events) == stop_after:
                break
        elif line and not line.startswith(":"):
            key, _, value = line.partition(": ")
            current[key] = f"{current[key]}\n{value}" if key in current else value
    return events


def test_a_created_prediction_has_an_id_that_cannot_be_guessed_and_addresses_that_work(door):
    created = create(door).json()
    assert len(created["id"]) >= 26
    assert created["id"] == created["id"].lower()
    assert (created["status"], created["output"], created["model"]) == ("starting", None, MODEL)
    final = door.wait_for(created["id"], "succeeded")
    assert door.client.get(created["urls"]["get"]).json() == final
    assert door.client.post(created["urls"]["cancel"]).json() == final, "an end stays as it is"
    assert final["metrics"]["total_time"] >= final["metrics"]["predict_time"] > 0
    assert final["created_at"] < final["started_at"] < final["completed_at"]


def test_a_wait_ends_with_the_prediction_or_says_starting_without_output(door):
    whole = create(door, Prefer="wait").json()
    assert whole["status"] == "succeeded"
    early = create(door, SLOWER, Prefer="respond-async, wait=1").json()
    assert (early["status"], early["output"]) == ("starting", None)
    running = door.get(early["id"])
    assert running["status"] == "processing"
    assert running["output"], "what there is so far"


@pytest.mark.parametrize("prefer", ["wait=0", "wait=61", "wait=", "wait=1.5", "wait=-1", "wait=x", "wait=" + "9" * 999])
def test_a_wrong_wait_is_refused(door, prefer):
    response = create(door, Prefer=prefer)
    assert response.status_code == 400
    assert "from 1 to 60" in response.json()["detail"]


def test_a_broken_stream_continues_after_the_last_event_while_it_runs_and_when_it_has_ended(door):
    url = create(door, SLOW + " mend").json()["urls"]["stream"]
    with door.client.stream("GET", url) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        first = read_events(response, stop_after=3)
    with door.client.stream("GET", url, headers={"Last-Event-ID": first[-1]["id"]}) as response:
        rest = read_events(response)
    whole = read_events(door.client.get(url))
    assert all(event["id"] for event in whole)
    assert {event["event"] for event in whole} == {"output", "logs", "done"}
    text = {
        name: "".join(event["data"] for event in [*first, *rest] if event["event"] == name)
        for name in ("output", "logs")
    }
    prediction = door.client.get(url.removesuffix("/stream")).json()
    assert text["output"] == "".join(prediction["output"])
    assert text["logs"] == prediction["logs"]
    middle = whole[len(whole) // 2]
    again = read_events(door.client.get(url, headers={"Last-Event-ID": middle["id"]}))
    assert again == whole[len(whole) // 2 + 1 :]


def test_a_stream_tells_how_a_failed_and_a_cancelled_prediction_ended(door):
    failed = create(door, " ", Prefer="wait").json()
    *_, error, done = read_events(door.client.get(failed["urls"]["stream"]))
    assert (error["event"], json.loads(done["data"])) == ("error", {"reason": "error"})
    assert json.loads(error["data"]) == {"detail": failed["error"]}
    cancelled = create(door, SLOW).json()
    door.client.post(cancelled["urls"]["cancel"])
    *_, done = read_events(door.client.get(cancelled["urls"]["stream"]))
    assert json.loads(done["data"]) == {"reason": "canceled"}


def test_a_client_that_leaves_cancels_nothing(door):
    url = create(door, SLOW).json()["urls"]["stream"]
    with door.client.stream("GET", url) as response:
        read_events(response, stop_after=1)
    final = door.wait_for(url.split("/")[-2], "succeeded", "canceled", "failed")
    assert final["status"] == "succeeded"
    with socket.create_connection(("127.0.0.1", door.port)) as leaving:  # while it waits for the whole
        body = json.dumps({"input": {"nlq": "leave " + SLOW, "cols": "a"}}).encode()
        head = f"POST {PREDICTIONS} HTTP/1.1\r\nHost: localhost\r\nPrefer: wait\r\nContent-Length: {len(body)}\r\n\r\n"
        leaving.sendall(head.encode() + body)
        while not (found := newest(door))["input"]["nlq"].startswith("leave"):
            pass
    assert door.wait_for(found["id"], "succeeded", "canceled", "failed")["status"] == "succeeded"


def newest(door: DoorServer) -> dict[str, object]:
    return door.client.get("/v1/predictions").json()["results"][0]


async def test_the_list_is_read_page_by_page_in_both_directions():
    made = [Prediction(new_id(), "a/b", "0" * 64, {"n": n}, now(), status=Status.SUCCEEDED) for n in range(105)]
    async with FakeCog() as cog, open_door(DoorSettings(upstreams=(cog.url,), keep=False, drain_seconds=0)) as door:
        await door.store.save(*made)
        app = create_app(door.settings)
        app.state.door = door
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            first = (await client.get("/v1/predictions")).json()
            second = (await client.get(first["next"])).json()
            back = (await client.get(second["previous"])).json()
    assert [one["id"] for one in first["results"] + second["results"]] == [one.id for one in reversed(made)]
    assert (first["previous"], len(first["results"]), second["next"]) == (None, 100, None)
    assert back["results"] == first["results"]


def test_the_model_has_one_version_with_its_schema(door):
    model = door.client.get(f"/v1/models/{MODEL}").json()
    version = model["latest_version"]
    assert len(version["id"]) == 64
    assert "nlq" in version["openapi_schema"]["components"]["schemas"]["Input"]["properties"]
    assert door.client.get(f"/v1/models/{MODEL}/versions").json()["results"] == [version]
    assert door.client.get(f"/v1/models/{MODEL}/versions/{version['id']}").json() == version


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "detail"),
    [
        ("GET", "/v1/predictions/none", None, 404, "there is no prediction none"),
        ("GET", "/v1/predictions/none/stream", None, 404, "there is no prediction none"),
        ("POST", "/v1/predictions/none/cancel", None, 404, "there is no prediction none"),
        ("GET", "/v1/predictions?cursor=abc", None, 400, "cursor"),
        ("GET", "/v1/models/other/model", None, 404, f"other/model is not served here; {MODEL} is"),
        ("GET", f"/v1/models/{MODEL}/versions/1", None, 404, "version 1 is not served here"),
        ("POST", "/v1/models/other/model/predictions", b'{"input": {}}', 404, "other/model is not served here"),
        ("PUT", "/v1/predictions", b"{}", 405, "PUT /v1/predictions"),
        ("GET", "/v1/nothing", None, 404, "/v1/nothing"),
        ("POST", "/v1/predictions", b"{bad", 400, "not JSON"),
        ("POST", "/v1/predictions", b"", 400, "not JSON"),
        ("POST", "/v1/predictions", b"[" * 100_000, 400, "not JSON"),
        ("POST", "/v1/predictions", b'{"input": {"nlq": NaN}}', 400, "not JSON"),
        ("POST", "/v1/predictions", b'{"input": {"nlq": "\\ud800"}}', 400, "not JSON"),
        ("POST", "/v1/predictions", b"[]", 422, "- body: "),
        ("POST", "/v1/predictions", b'{"input": {}}', 422, "- version: Field required"),
        ("POST", "/v1/predictions", b'{"input": {}, "version": "x"}', 422, "- version: 'x' is not served here"),
        ("POST", PREDICTIONS, b'{"input": {}, "extra": 1}', 422, "- extra: "),
        ("POST", PREDICTIONS, b'{"input": {}, "id": "mine"}', 422, "- id: "),
        ("POST", PREDICTIONS, b'{"input": []}', 422, "- input: "),
        ("POST", PREDICTIONS, b"{}", 422, "- input: Field required"),
        ("POST", PREDICTIONS, b'{"input": {"nlq": "a"}}', 422, "- input.cols: Field required"),
        ("POST", PREDICTIONS, b'{"input": {"nlq": 1, "cols": "a"}}', 422, "- input.nlq: 1 is not of type"),
        # Python reads this number and Cog's parser does not, which must not look like a broken server.
        ("POST", PREDICTIONS, b'{"input": {"nlq": 1' + b"0" * 400 + b', "cols": "a"}}', 422, "- input"),
        ("POST", PREDICTIONS, b'{"input": {"nlq": "a", "cols": "a", "x": 1}}', 422, "- input.x: is not an input"),
    ],
)
def test_what_is_wrong_is_a_problem_that_names_it(door, method, path, body, status, detail):
    before = newest(door)["id"]
    response = door.client.request(method, path, content=body)
    problem = response.json()
    assert (response.status_code, problem["status"]) == (status, status)
    assert response.headers["content-type"] == "application/problem+json"
    assert detail in problem["detail"]
    if status == 422:
        assert problem["invalid_fields"][0]["field"] in problem["detail"]
    assert newest(door)["id"] == before, "nothing was created"


def test_wrong_inputs_are_refused_at_once_also_while_all_slots_are_taken(door):
    waiting = [create(door, f"{SLOW} {number}").json()["id"] for number in range(CONCURRENCY + 2)]
    assert "starting" in {door.get(prediction_id)["status"] for prediction_id in waiting}
    for inputs, detail in (
        ({"nlq": "a"}, "- input.cols: Field required"),
        ({"nlq": 1, "cols": "a"}, "- input.nlq: 1 is not of type"),
        ({"nlq": "a", "cols": "a", "max_tokens": 0}, "- input.max_tokens: 0 is less than the minimum of 1"),
    ):
        response = door.client.post(PREDICTIONS, json={"input": inputs})
        assert (response.status_code, response.json()["detail"][: len(detail)]) == (422, detail)
    for prediction_id in waiting:
        cancelled = door.client.post(f"/v1/predictions/{prediction_id}/cancel").json()
        assert cancelled["status"] == "canceled"


def test_a_body_over_the_limit_is_refused_with_and_without_its_length(door):
    def parts():
        for _ in range(5):
            yield b" " * (1 << 20)

    for content in (b" " * (5 << 20), parts()):
        try:
            response = door.client.post(PREDICTIONS, content=content)
        except httpx.WriteError:
            continue  # the door closed the connection before all was sent
        assert response.status_code == 413
        assert "4,194,304" in response.json()["detail"]


def test_a_wrong_event_id_is_refused(door):
    prediction_id = create(door, Prefer="wait").json()["id"]
    for event_id in ("x", "1:2", "1:-1-0", "9" * 5000):
        response = door.client.get(f"/v1/predictions/{prediction_id}/stream", headers={"Last-Event-ID": event_id})
        assert response.status_code == 400, event_id
    beyond = door.client.get(f"/v1/predictions/{prediction_id}/stream", headers={"Last-Event-ID": "1:99999-99999"})
    assert [event["event"] for event in read_events(beyond)] == ["done"]


def test_links_have_the_name_that_the_client_uses_unless_it_is_no_name(door):
    assert create(door, Host="door.example:123").json()["urls"]["get"].startswith("http://door.example:123/v1/")
    for hostile in ("evil.example/path", "a b", '"><script>'):
        response = create(door, Host=hostile)
        if response.status_code == 201:
            assert response.json()["urls"]["get"].startswith(door.url)


def test_what_runs_is_told_apart_from_what_lives(door):
    assert door.client.get("/health").json() == {"status": "ok"}
    ready = door.client.get("/ready").json()
    assert (ready["status"], ready["servers"][0]["healthy"]) == ("ready", True)


def test_a_number_that_no_float_can_hold_is_refused_and_nothing_is_kept(door):
    newest = door.client.get("/v1/predictions").json()["results"][0]["id"]
    body = b'{"input": {"nlq": "a", "cols": "a", "seed": [{"x": -1e999}]}}'
    refused = door.client.post(PREDICTIONS, content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code == 400
    assert "too large" in refused.json()["detail"]
    assert door.client.get("/v1/predictions").json()["results"][0]["id"] == newest
