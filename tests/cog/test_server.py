"""The real Cog server with the Predictor, as clients see it; the engine is a fake with real queues."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.endurance.cog_process import CogServer
from pipeline.paths import ROOT
from tasks.honeycomb.prompt import build_prompt
from tasks.honeycomb.query import parse_query
from tests.cog.asking import post, stream
from tests.cog.control import CONTROLLED, Control
from tests.cog.tiny_weights import make_tiny_weights
from tests.tiny_tokenizers import byte_level

pytestmark = pytest.mark.server

CONCURRENCY = 8
COLUMNS = ["service.name", "order.cancelled"]
LONG = "why is " + "a very long question " * 10 + "slow"  # seconds of answer
LONGER = "why is " + "a very long question " * 60 + "slow"  # a quarter of a minute, which no test waits for


def start(folder: Path, control: Control) -> CogServer:
    env = make_tiny_weights(folder) | {
        "ENGINE": "fake",
        "CONTROL": str(control.folder),
        "MAX_NUM_SEQS": str(CONCURRENCY),
        "STEP_SECONDS": "0.01",
    }
    return CogServer(CONTROLLED, env=env, log=folder / "server.log", concurrency=CONCURRENCY)


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Control:
    return Control(tmp_path_factory.mktemp("control"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, control: Control) -> Iterator[CogServer]:
    with start(tmp_path_factory.mktemp("server"), control) as server:
        yield server


@pytest.fixture
def server(shared: CogServer, control: Control) -> Iterator[CogServer]:
    """The module's server; each test leaves it idle."""
    yield shared
    control.wait_until_idle(shared)


def read_stream(server: CogServer, prediction_id: str, nlq: str) -> list[tuple[str, Any, float]]:
    with stream(server, prediction_id, nlq=nlq, cols=str(COLUMNS), max_tokens=2500) as events:
        return list(events)


def test_the_query_is_streamed(server):
    """That its chunks come before its end, those tests show that cancel after the first."""
    events = read_stream(server, "live", "how many orders were there?")
    chunks = [data["chunk"] for name, data, _ in events if name == "output"]
    last = next(data for name, data, _ in events if name == "completed")
    assert len(chunks) > 20
    assert last["status"] == "succeeded"
    assert last["output"] == chunks
    query = parse_query("".join(last["output"]), COLUMNS)
    assert query.filters[0].value == "how many orders were there?"
    assert query.orders[0].op == "COUNT"


def test_as_many_predictions_as_slots_run_at_the_same_time_each_with_its_own_answer_and_metrics(server, control):
    questions = [f"{LONG} {'0' * number}?" for number in range(CONCURRENCY)]
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        futures = [pool.submit(read_stream, server, f"all-{len(question)}", question) for question in questions]
        control.wait_until_running(server, CONCURRENCY)
        streams = [future.result() for future in futures]
    tokenizer = byte_level()
    for question, events in zip(questions, streams, strict=True):
        prediction = events[-1][1]
        assert parse_query("".join(prediction["output"]), COLUMNS).filters[0].value == question
        prompt = build_prompt(question, COLUMNS, "columns-first")
        metrics = prediction["metrics"]
        assert metrics["input_token_count"] == len(tokenizer.encode(prompt))
        assert metrics["model_passes"] == metrics["output_token_count"] + 1
        assert 0 < metrics["time_to_first_token"] < metrics["predict_time"]
        assert metrics["tokens_per_second"] > 0


def test_repairs_are_in_the_logs_of_their_own_prediction_only(server):
    """The answer is sorted by something that is not calculated; other predictions run at the same time."""
    questions = ["mend this", "leave this", "mend that", "leave that"]
    with ThreadPoolExecutor(len(questions)) as pool:
        streams = list(pool.map(lambda q: read_stream(server, f"logs-{q.replace(' ', '-')}", q), questions))
    for question, events in zip(questions, streams, strict=True):
        prediction = events[-1][1]
        query = parse_query("".join(prediction["output"]), COLUMNS)
        assert (query.orders == ()) == ("mend" in question)
        assert prediction["logs"].count("repaired: orders[0] dropped") == ("mend" in question)


def test_cancel_ends_the_prediction_and_frees_the_engine(server, control):
    with stream(server, "cancel-me", nlq=LONGER, cols=str(COLUMNS), max_tokens=2500) as events:
        next(event for event in events if event[0] == "output")
        assert control.stats(server)["num_running"] == 1
        assert server.client.post("/predictions/cancel-me/cancel").status_code == 200
        *_, (name, prediction, _) = events
    assert (name, prediction["status"]) == ("completed", "canceled")
    control.wait_until_idle(server)


def test_cancelling_half_of_the_predictions_does_not_change_the_others(server, control):
    def predict(number: int) -> dict[str, Any]:
        return read_stream(server, f"half-{number}", f"{LONG} {number}")[-1][1]

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        futures = [pool.submit(predict, number) for number in range(CONCURRENCY)]
        control.wait_until_running(server, CONCURRENCY)
        for number in range(0, CONCURRENCY, 2):
            server.client.post(f"/predictions/half-{number}/cancel")
        predictions = [future.result() for future in futures]
    assert {p["status"] for p in predictions[::2]} == {"canceled"}
    for number, prediction in list(enumerate(predictions))[1::2]:
        query = parse_query("".join(prediction["output"]), COLUMNS)
        assert query.filters[0].value == f"{LONG} {number}"


def test_a_client_that_disconnects_frees_the_engine(server, control):
    with stream(server, "leave", nlq=LONGER, cols=str(COLUMNS), max_tokens=2500) as events:
        next(event for event in events if event[0] == "output")
        assert control.stats(server)["num_running"] == 1
    control.wait_until_idle(server)


def test_one_prediction_more_than_the_slots_is_refused_while_they_run(server, control):
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        futures = [pool.submit(read_stream, server, f"full-{n}", LONGER) for n in range(CONCURRENCY)]
        control.wait_until_running(server, CONCURRENCY)
        assert post(server, nlq="one more", cols="a").status_code == 409
        for number in range(CONCURRENCY):
            server.client.post(f"/predictions/full-{number}/cancel")
        assert {future.result()[-1][1]["status"] for future in futures} == {"canceled"}


@pytest.mark.parametrize(
    ("inputs", "field", "message"),
    [
        ({"cols": "a"}, "nlq", "required"),
        ({"nlq": "a"}, "cols", "required"),
        ({"nlq": 5, "cols": "a"}, "nlq", "string"),
        ({"nlq": "a", "cols": ["a"]}, "cols", "string"),
        ({"nlq": "a", "cols": "a", "max_tokens": 0}, "max_tokens", "minimum of 1"),
        ({"nlq": "a", "cols": "a", "max_tokens": 2501}, "max_tokens", "maximum of 2500"),
    ],
)
def test_an_input_outside_the_schema_is_422_and_names_it(server, inputs, field, message):
    response = post(server, **inputs)
    assert response.status_code == 422
    (detail,) = response.json()["detail"]
    assert detail["loc"] == ["body", "input", field]
    assert message in detail["msg"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"nlq": " ", "cols": "a"}, "nlq: is blank"),
        ({"nlq": "a", "cols": "['order.cancelled' 'CancelledError']"}, "cols: item 1"),
        (
            {"nlq": "a", "cols": ",".join("x" * 100 + str(n) for n in range(99))},
            "nlq and cols: the prompt has",
        ),
        ({"nlq": "a", "cols": "a", "max_tokens": 5}, "max_tokens: the answer was not complete after 5 tokens"),
    ],
)
def test_an_input_that_cannot_be_answered_fails_with_its_name_and_limit(server, inputs, message):
    """Also with "cancelled" in it, which Cog would take for a cancelled prediction elsewhere."""
    prediction = post(server, **inputs).json()
    assert prediction["status"] == "failed"
    assert message in prediction["error"]


def test_a_float_without_a_fraction_is_accepted_as_an_integer(server):
    """JSON Schema accepts 400.0 as an integer, and Cog passes it on as a float."""
    prediction = post(server, nlq="a", cols="a", max_tokens=400.0).json()
    assert prediction["status"] == "succeeded"


def test_a_second_request_with_the_same_id_joins_the_prediction_in_flight(server, control):
    reading = threading.Thread(target=read_stream, args=(server, "twice", LONGER))
    reading.start()
    control.wait_until_running(server, 1)
    body = {"id": "twice", "input": {"nlq": LONGER, "cols": str(COLUMNS)}}
    answers = [server.client.put("/predictions/twice", json=body) for _ in range(5)]
    assert {answer.status_code for answer in answers} == {202}
    assert control.stats(server)["num_running"] == 1
    server.client.post("/predictions/twice/cancel")
    reading.join(60)


def test_the_server_serves_the_committed_schema(server):
    checked_in = json.loads((ROOT / ".cog" / "openapi_schema.json").read_text())
    assert server.client.get("/openapi.json").json() == checked_in


def test_a_dead_engine_fails_pending_predictions_and_the_health_check(tmp_path):
    control = Control(tmp_path)
    with start(tmp_path, control) as server:
        assert server.health()["status"] == "READY"
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(read_stream, server, f"doomed-{n}", LONGER) for n in range(4)]
            control.wait_until_running(server, 4)
            (tmp_path / "kill").touch()
            health = server.wait_for("UNHEALTHY", seconds=60)
            predictions = [future.result(timeout=60)[-1][1] for future in futures]
        assert "the engine was killed" in health["user_healthcheck_error"]
        assert {p["status"] for p in predictions} == {"failed"}
        assert "the engine was killed" in post(server, nlq="a", cols="a").json()["error"]


def test_sigterm_finishes_predictions_in_flight_and_exits_with_0(tmp_path):
    control = Control(tmp_path)
    with start(tmp_path, control) as server, ThreadPoolExecutor(CONCURRENCY) as pool:
        futures = [pool.submit(read_stream, server, f"drain-{n}", f"{LONG} {n}") for n in range(CONCURRENCY)]
        control.wait_until_running(server, CONCURRENCY)
        server.process.send_signal(signal.SIGTERM)
        predictions = [future.result(timeout=60)[-1][1] for future in futures]
        assert server.process.wait(60) == 0
        assert {p["status"] for p in predictions} == {"succeeded"}
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/health-check")
