"""Packages of a real, untuned model under the real Cog server, started in their own folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import instructor
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from lab.endurance.cog_process import CogServer
from pipeline.package.new_package import new_package
from pipeline.package.task_choice import TaskChoice
from tests.cog.asking import post, stream
from tests.gateway.gateway_server import GatewayServer

pytestmark = [pytest.mark.server, pytest.mark.weights]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "places": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["name", "age", "places"],
    "additionalProperties": False,
}
SYSTEM = 'Extract the person from the text. Answer with JSON: {"name": "...", "age": 1, "places": ["..."]}'
NAMES = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Frances", "Ken"]
TEXTS = [f"We met {name}, {30 + number}, in London." for number, name in enumerate(NAMES)]
PROMPTS = [f"Write one sentence about {name}." for name in NAMES]
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[CogServer]:
    folder = tmp_path_factory.mktemp("packages")
    new_package(folder / "chat", smollm2, TaskChoice("chat"))
    env = {"ENGINE": "paged"}
    with CogServer("predict.py:Predictor", env=env, log=folder / "log", package=folder / "chat") as server:
        yield server


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[CogServer]:
    folder = tmp_path_factory.mktemp("packages")
    (folder / "person.json").write_text(json.dumps(PERSON))
    new_package(folder / "schema", smollm2, TaskChoice("schema", schema=folder / "person.json", system=SYSTEM))
    env = {"ENGINE": "paged"}
    with CogServer("predict.py:Predictor", env=env, log=folder / "log", package=folder / "schema") as server:
        yield server


def read(server: CogServer, name: str, **inputs: Any) -> list[tuple[str, Any, float]]:
    """All events of one prediction."""
    with stream(server, name, **inputs) as events:
        return list(events)


def text_of(events: list[tuple[str, Any, float]]) -> str:
    name, prediction, _ = events[-1]
    assert (name, prediction["status"]) == ("completed", "succeeded"), prediction
    return "".join(data["chunk"] for event, data, _ in events if event == "output")


def at_once(server: CogServer, name: str, calls: list[dict[str, Any]]) -> list[list[tuple[str, Any, float]]]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda n: read(server, f"{name}-{n}", **calls[n]), range(len(calls))))


def test_a_chat_streams_its_answer(chat: CogServer) -> None:
    events = read(chat, "live", prompt="What is the capital of France?", **GREEDY)
    assert "Paris" in text_of(events)
    shown = [when for event, _, when in events if event == "output"]
    assert len(shown) > 3
    assert events[-1][2] - shown[0] > 0.2 * events[-1][1]["metrics"]["predict_time"], (
        "the first chunk came with the last"
    )
    assert events[-1][1]["metrics"]["output_token_count"] <= GREEDY["max_tokens"]


def test_eight_chats_run_at_once_with_the_same_answers_as_alone(chat: CogServer) -> None:
    calls = [{"prompt": prompt, **GREEDY} for prompt in PROMPTS]
    batched = at_once(chat, "batched", calls)
    assert max(events[0][2] for events in batched) < min(events[-1][2] for events in batched), "one waited for another"
    texts = [text_of(events) for events in batched]
    assert len(set(texts)) == len(texts)
    assert texts[:2] == [text_of(read(chat, f"alone-{n}", **calls[n])) for n in range(2)]


def test_every_kind_of_input_reaches_the_task(chat: CogServer) -> None:
    """Objects, lists, text and numbers, as the generated schema declares them."""
    words = ("apple", "banana", "cherry")
    turns = [[{"role": "user", "content": f"Say: {w}"}, {"role": "assistant", "content": w}] for w in words]
    conversation = [message for turn in turns for message in turn][:-1]
    assert text_of(read(chat, "messages", messages=conversation, **GREEDY)) == "cherry"
    count = {"prompt": "Count from one to ten in words, with commas.", "temperature": 0, "max_tokens": 40}
    whole = text_of(read(chat, "count", **count))
    word = whole.split()[3]
    stopped = text_of(read(chat, "stop", stop_sequences=[word], **count))
    assert stopped == whole[: whole.index(word)]
    sampled = {"prompt": "Write a word.", "temperature": 1.5, "seed": 0, "top_k": 40, "top_p": 0.95, "max_tokens": 12}
    assert text_of(read(chat, "seed-1", **sampled)) == text_of(read(chat, "seed-2", **sampled))
    assert text_of(read(chat, "seed-3", **{**sampled, "seed": 1})) != text_of(read(chat, "seed-4", **sampled))


def test_a_chat_s_answer_follows_the_caller_s_schema(chat: CogServer) -> None:
    prompt = f"{SYSTEM}\n\n{TEXTS[0]}"
    text = text_of(read(chat, "json", prompt=prompt, json_schema=PERSON, temperature=0, max_tokens=120))
    jsonschema.validate(json.loads(text), PERSON)
    assert json.loads(text)["name"] == "Ada"


class Person(BaseModel):
    name: str
    age: int | None
    places: list[str] = Field(max_length=3)


def test_a_chat_answers_openai_s_clients_through_the_gateway(chat: CogServer, tmp_path: Path) -> None:
    """The real model: logprobs are its own, and instructor's object is right because the prompt asks for it."""
    with (
        GatewayServer([str(chat.client.base_url)], tmp_path) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client,
    ):
        capital = [{"role": "user", "content": "What is the capital of France?"}]
        answer = client.chat.completions.create(
            model="test",
            messages=capital,
            temperature=0,
            max_tokens=12,
            presence_penalty=0.1,
            logprobs=True,
            top_logprobs=2,
        )
        assert "Paris" in answer.choices[0].message.content
        assert answer.usage.completion_tokens <= 12
        tokens = answer.choices[0].logprobs.content
        assert len(tokens) == answer.usage.completion_tokens
        assert all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in tokens)
        assert len({one.logprob for one in tokens}) > 1
        person = instructor.from_openai(client).chat.completions.create(
            model="test",
            messages=[{"role": "user", "content": f"{SYSTEM}\n\n{TEXTS[0]}"}],
            response_model=Person,
            temperature=0,
            max_tokens=120,
        )
        assert person.name == "Ada"


def test_cancel_ends_a_chat_and_the_next_is_answered(chat: CogServer) -> None:
    with stream(chat, "long", prompt="Tell me a long story.", max_tokens=2000) as events:
        next(event for event in events if event[0] == "output")
        assert chat.client.post("/predictions/long/cancel").status_code == 200
        *_, (name, prediction, _) = events
    assert (name, prediction["status"]) == ("completed", "canceled")
    assert chat.health()["status"] == "READY"
    assert text_of(read(chat, "after", prompt=PROMPTS[0], **GREEDY))


@pytest.mark.parametrize(
    ("inputs", "place", "message"),
    [
        ({"messages": "hello"}, "messages", 'is not of type "array"'),
        ({"messages": ["hello"]}, "messages/0", 'is not of type "object"'),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens", 'is not of type "integer"'),
        ({"prompt": "a", "json_schema": "{}"}, "json_schema", 'is not of type "object"'),
    ],
)
def test_an_input_of_the_wrong_type_is_422_and_named(
    chat: CogServer, inputs: dict[str, Any], place: str, message: str
) -> None:
    response = post(chat, **inputs)
    assert response.status_code == 422
    (detail,) = response.json()["detail"]
    assert detail["loc"] == ["body", "input", place]
    assert message in detail["msg"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "prompt or messages: both are empty"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt or messages: both are given"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "top_p": 1.5}, "top_p"),
        ({"prompt": "a " * 9000}, "prompt or messages: "),
        ({"prompt": "a", "json_schema": {"type": "string", "pattern": "(a)\\1"}}, "pattern"),
    ],
)
def test_an_input_that_cannot_be_answered_is_named_with_its_limit(
    chat: CogServer, inputs: dict[str, Any], message: str
) -> None:
    response = post(chat, **inputs)
    assert response.status_code in (200, 422)
    assert message in response.text
    assert response.status_code == 422 or response.json()["status"] == "failed"


def test_the_server_serves_the_generated_schema(chat: CogServer, schema: CogServer) -> None:
    for server in (chat, schema):
        written = json.loads((server.package / ".cog" / "openapi_schema.json").read_text())
        assert server.client.get("/openapi.json").json() == written
    inputs = schema.client.get("/openapi.json").json()["components"]["schemas"]["Input"]
    assert sorted(inputs["properties"], key=lambda name: inputs["properties"][name]["x-order"]) == [
        *("text", "max_tokens", "temperature", "seed", "adapter"),
    ]


def test_eight_predictions_at_once_give_json_of_the_schema(schema: CogServer) -> None:
    answers = [json.loads(text_of(e)) for e in at_once(schema, "texts", [{"text": text} for text in TEXTS])]
    for answer in answers:
        jsonschema.validate(answer, PERSON)
    # The model was not trained for this, and the kind of processor decides some of its answers. None is another's.
    for own, answer in zip(NAMES, answers, strict=True):
        assert answer["name"] not in set(NAMES) - {own}
    assert {answer["name"] for answer in answers} & set(NAMES)


def test_json_is_streamed(schema: CogServer) -> None:
    events = read(schema, "streamed", text=TEXTS[0])
    shown = [when for event, _, when in events if event == "output"]
    assert len(shown) > 1
    assert shown[0] < events[-1][2]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "required"),
        ({"text": " "}, "text: is blank"),
        ({"text": TEXTS[0], "max_tokens": 0}, "minimum of 1"),
        ({"text": TEXTS[0], "max_tokens": 3}, "max_tokens: the answer was not complete after 3 tokens"),
        ({"text": "a " * 9000}, "text: the prompt has"),
    ],
)
def test_invalid_input_of_a_schema_task_is_an_error(schema: CogServer, inputs: dict[str, Any], message: str) -> None:
    response = post(schema, **inputs)
    assert message in response.text
    assert response.status_code == 422 or response.json()["status"] == "failed"
