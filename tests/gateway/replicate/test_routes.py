"""Replicate's API over plain HTTP, where the official client would hide what is tested."""

from __future__ import annotations

import json

import httpx
import pytest
from fastapi import APIRouter, FastAPI, HTTPException

from gateway.http.api import Api, include
from gateway.predictions.prediction import Prediction, Status, new_id, now
from gateway.predictions.store import Store
from gateway.replicate.objects import render_problem
from tests.gateway.fake_cog import FakeCog
from tests.gateway.gateway_server import MODEL, PREDICTIONS, GatewayServer
from tests.gateway.open_app import open_app
from tests.gateway.started_cog import CONCURRENCY, SLOW, SLOWER

pytestmark = pytest.mark.server
SHORT = {"nlq": "short?", "cols": "a"}
WAIT = {"Prefer": "wait"}


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


def test_a_created_prediction_has_an_id_that_cannot_be_guessed_and_addresses_that_work(gateway):
    created = gateway.create(**SHORT)
    assert len(created["id"]) >= 26
    assert created["id"] == created["id"].lower()
    assert (created["status"], created["output"], created["model"]) == ("starting", None, MODEL)
    final = gateway.wait_for(created["id"], "succeeded")
    assert gateway.client.get(created["urls"]["get"]).json() == final
    assert gateway.client.post(created["urls"]["cancel"]).json() == final, "an end stays as it is"
    assert final["metrics"]["total_time"] >= final["metrics"]["predict_time"] > 0
    assert final["created_at"] < final["started_at"] < final["completed_at"]


def test_a_wait_ends_with_the_prediction_or_says_starting_without_output(gateway, held):
    assert gateway.create(WAIT, **SHORT)["status"] == "succeeded"
    early = gateway.create({"Prefer": "respond-async, wait=1"}, nlq="hold", cols="a")
    assert (early["status"], early["output"]) == ("starting", None)
    assert gateway.get(early["id"])["status"] == "processing"


def test_a_wrong_wait_is_refused(gateway):
    for seconds in ("0", "61", "", "1.5", "-1", "x", "9" * 999):
        response = gateway.post({"Prefer": f"wait={seconds}"}, input=SHORT)
        assert response.status_code == 400
        assert "from 1 to 60" in response.json()["detail"]


def test_a_broken_stream_continues_after_the_last_event_while_it_runs_and_when_it_has_ended(gateway):
    created = gateway.create(nlq=SLOW + " mend", cols="a")
    url = created["urls"]["stream"]
    with gateway.client.stream("GET", url) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        first = read_events(response, stop_after=3)
    rest = read_events(gateway.client.get(url, headers={"Last-Event-ID": first[-1]["id"]}))
    whole = read_events(gateway.client.get(url))
    assert all(event["id"] for event in whole)
    assert {event["event"] for event in whole} == {"output", "logs", "done"}
    prediction = gateway.get(created["id"])
    for name, text in (("output", "".join(prediction["output"])), ("logs", prediction["logs"])):
        assert "".join(event["data"] for event in [*first, *rest] if event["event"] == name) == text
    for number in (len(whole) // 2, len(whole) - 2):
        again = gateway.client.get(url, headers={"Last-Event-ID": whole[number]["id"]})
        assert read_events(again) == whole[number + 1 :]
    for event_id in ("x", "1:2", "1:-1-0", "9" * 5000):
        assert gateway.client.get(url, headers={"Last-Event-ID": event_id}).status_code == 400, event_id
    beyond = gateway.client.get(url, headers={"Last-Event-ID": "1:99999-99999"})
    assert [event["event"] for event in read_events(beyond)] == ["done"]


def test_a_stream_tells_how_a_failed_and_a_cancelled_prediction_ended(gateway):
    failed = gateway.create(WAIT, nlq=" ", cols="a")
    *_, error, done = read_events(gateway.client.get(failed["urls"]["stream"]))
    assert (error["event"], json.loads(done["data"])) == ("error", {"reason": "error"})
    assert json.loads(error["data"]) == {"detail": failed["error"]}
    cancelled = gateway.create(nlq=SLOWER, cols="a")
    with gateway.client.stream("GET", cancelled["urls"]["stream"]) as response:
        read_events(response, stop_after=1)  # Cog fails what is cancelled at once
    gateway.client.post(cancelled["urls"]["cancel"])
    *_, done = read_events(gateway.client.get(cancelled["urls"]["stream"]))
    assert json.loads(done["data"]) == {"reason": "canceled"}


def test_a_client_that_leaves_cancels_nothing(gateway, held):
    streamed = gateway.create(nlq=SLOW, cols="a")
    with gateway.client.stream("GET", streamed["urls"]["stream"]) as response:
        read_events(response, stop_after=1)
    with gateway.sent(PREDICTIONS, {"input": {"nlq": "hold", "cols": "a"}}, "Prefer: wait"):
        while (waited := gateway.newest())["input"]["nlq"] != "hold":
            pass
    held.unlink()
    for one in (streamed, waited):
        assert gateway.wait_for(one["id"], "succeeded", "canceled", "failed")["status"] == "succeeded"


async def test_the_list_is_read_page_by_page_in_both_directions(tmp_path):
    made = [Prediction(new_id(), "a/b", "0" * 64, {"n": n}, now(), status=Status.SUCCEEDED) for n in range(105)]
    store = Store(tmp_path / "gateway.sqlite")
    await store.open()
    await store.save(*made)
    await store.close()
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        first = (await client.get("/v1/predictions")).json()
        second = (await client.get(first["next"])).json()
        back = (await client.get(second["previous"])).json()
    assert [one["id"] for one in first["results"] + second["results"]] == [one.id for one in reversed(made)]
    assert (first["previous"], len(first["results"]), second["next"]) == (None, 100, None)
    assert back["results"] == first["results"]


def test_the_model_has_one_version_with_its_schema(gateway):
    version = gateway.client.get(f"/v1/models/{MODEL}").json()["latest_version"]
    assert len(version["id"]) == 64
    assert "nlq" in version["openapi_schema"]["components"]["schemas"]["Input"]["properties"]
    assert gateway.client.get(f"/v1/models/{MODEL}/versions").json()["results"] == [version]
    assert gateway.client.get(f"/v1/models/{MODEL}/versions/{version['id']}").json() == version


def test_a_model_of_the_list_has_an_address_that_works(gateway):
    page = gateway.client.get("/v1/models").json()
    (model,) = page["results"]
    assert (page["previous"], page["next"], f"{model['owner']}/{model['name']}") == (None, None, MODEL)
    assert (page["object"], [one["object"] for one in page["data"]]) == ("list", ["model"])
    assert model == gateway.client.get(f"/v1/models/{MODEL}").json()
    assert httpx.get(model["url"]).status_code == 200


def test_null_for_an_optional_input_is_its_default(gateway):
    response = gateway.post(WAIT, input={**SHORT, "max_tokens": None, "adapter": None})
    assert (response.status_code, response.json()["status"], response.json()["input"]) == (201, "succeeded", SHORT)
    (wrong,) = gateway.post(WAIT, input={**SHORT, "nlq": None}).json()["invalid_fields"]
    assert wrong["field"] == "input.nlq", "a required one must have a value"


async def test_errors_of_the_framework_keep_their_status():
    router = APIRouter()

    @router.get("/v1/predictions")
    async def fail() -> None:
        raise HTTPException(415, "this cannot be read")

    app = FastAPI()
    include(app, [Api(router, ("/v1/",), render_problem)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        problem = (await client.get("/v1/predictions")).json()
    assert (problem["status"], problem["title"]) == (415, "Unsupported Media Type")
    assert problem["detail"].endswith("this cannot be read")


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
        ("GET", "/v1/trainings", None, 404, "/v1/trainings"),
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
        ("POST", PREDICTIONS, b'{"input": {"nlq": "a", "cols": "a", "seed": [{"x": -1e999}]}}', 400, "too large"),
        # Python reads this number and Cog's parser does not, which must not look like a broken server.
        ("POST", PREDICTIONS, b'{"input": {"nlq": 1' + b"0" * 400 + b', "cols": "a"}}', 422, "- input"),
        ("POST", PREDICTIONS, b'{"input": {"nlq": "a", "cols": "a", "x": 1}}', 422, "- input.x: is not an input"),
    ],
)
def test_what_is_wrong_is_a_problem_that_names_it(gateway, method, path, body, status, detail):
    before = gateway.newest()["id"]
    response = gateway.client.request(method, path, content=body)
    problem = response.json()
    assert (response.status_code, problem["status"]) == (status, status)
    assert response.headers["content-type"] == "application/problem+json"
    assert detail in problem["detail"]
    if status == 422:
        assert problem["invalid_fields"][0]["field"] in problem["detail"]
    assert gateway.newest()["id"] == before, "nothing was created"


def test_wrong_inputs_are_refused_at_once_also_while_all_slots_are_taken(gateway):
    waiting = [gateway.create(nlq=f"{SLOWER} {number}", cols="a")["id"] for number in range(CONCURRENCY + 2)]
    assert "starting" in {gateway.get(prediction_id)["status"] for prediction_id in waiting}
    for inputs, detail in (
        ({"nlq": "a"}, "- input.cols: Field required"),
        ({"nlq": 1, "cols": "a"}, "- input.nlq: 1 is not of type"),
        ({**SHORT, "max_tokens": 0}, "- input.max_tokens: 0 is less than the minimum of 1"),
    ):
        response = gateway.post(input=inputs)
        assert (response.status_code, response.json()["detail"][: len(detail)]) == (422, detail)
    for prediction_id in reversed(waiting):  # so that none starts now, because Cog fails what is cancelled at once
        ended = gateway.client.post(f"/v1/predictions/{prediction_id}/cancel").json()["status"]
        assert ended in ("canceled", "succeeded"), "on busy cores the first ones may have ended"


def test_links_have_the_name_that_the_client_uses_unless_it_is_no_name(gateway: GatewayServer):
    created = gateway.create({"Host": "gateway.example:123"}, **SHORT)
    assert created["urls"]["get"].startswith("http://gateway.example:123/v1/")
    for hostile in ("evil.example/path", "a b", '"><script>'):
        response = gateway.post({"Host": hostile}, input=SHORT)
        assert response.status_code != 201 or response.json()["urls"]["get"].startswith(gateway.url)
