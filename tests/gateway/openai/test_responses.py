"""The Responses API with the official openai client: answers, streams, what is stored, and what is refused."""

from __future__ import annotations

import json
import random

import httpx
import openai
import pytest
from pydantic import BaseModel

from gateway.openai.responses.body import ResponsesBody
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.open_app import make_keys
from tests.gateway.openai.conftest import MODEL, ORDER, TEXT, Order

pytestmark = pytest.mark.server
TEA = '{"item": "tea", "count": 2}'
TOOL = {"type": "function", "name": "order", "parameters": ORDER}
NAMED = {"type": "function", "name": "order"}
LONG = "word " * 300
LOOKING_BACK = {"type": "string", "pattern": "(?<=a)b"}
STREAM_OF_TEXT = ["response.created", "response.in_progress", "response.output_item.added"]
STREAM_OF_TEXT += ["response.content_part.added", "response.output_text.delta", "response.output_text.done"]
STREAM_OF_TEXT += ["response.content_part.done", "response.output_item.done", "response.completed"]
STREAM_OF_CALL = [*STREAM_OF_TEXT[:3], "response.function_call_arguments.delta"]
STREAM_OF_CALL += ["response.function_call_arguments.done", *STREAM_OF_TEXT[-2:]]


def respond(client, given=TEXT, **parameters):
    return client.responses.create(model=MODEL, input=given, **parameters)


def kinds(events) -> list[str]:
    """The events' types in order, each once in a row."""
    types = [event.type for event in events]
    return [kind for kind, before in zip(types, [None, *types], strict=False) if kind != before]


def test_a_text_is_answered_with_all_that_the_client_reads(client):
    response = respond(client, instructions="Repeat.", metadata={"a": "b"}, temperature=0)
    assert response.output_text == TEXT
    assert (response.object, response.status, response.model) == ("response", "completed", MODEL)
    assert (response.instructions, response.metadata, response.error) == ("Repeat.", {"a": "b"}, None)
    assert (response.tools, response.tool_choice, response.store) == ([], "none", True)
    [item] = response.output
    assert (item.type, item.role, item.status, item.content[0].annotations) == ("message", "assistant", "completed", [])
    assert response.usage.input_tokens > response.usage.output_tokens > 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    # Every field that the client's class requires is there, with a value that it allows.
    type(response).model_validate_json(response.to_json(), strict=True)


def test_items_are_the_conversation(client, chat_gateway):
    given = [
        {"role": "developer", "content": "Repeat."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "one", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "two,"}, {"type": "input_text", "text": "three"}]},
    ]
    with pytest.raises(openai.BadRequestError, match="writes nothing of tool_calls"):  # as in a chat completion
        respond(client, given)
    sent = chat_gateway.newest()["input"]["messages"]
    function = {"name": "now", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function} for name in ("c1", "c2")]
    assert sent[:3] == [
        {"role": "system", "content": "Repeat."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "one", "tool_calls": calls},
    ]
    assert sent[3:5] == [{"role": "tool", "tool_call_id": name, "content": "noon"} for name in ("c1", "c2")]
    assert respond(client, [*given[:3], given[-1]]).output_text == "two,\nthree"


def test_an_answer_follows_its_format(client):
    parsed = client.responses.parse(model=MODEL, input=TEA, text_format=Order)
    assert parsed.output_parsed == Order(item="tea", count=2)
    anything = respond(client, TEA, text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(anything.output_text), dict)
    assert respond(client, text={"format": {"type": "text"}}).output_text == TEXT


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_tool_is_called(client, choice):
    response = respond(client, TEA, tools=[TOOL], tool_choice=choice)
    [call] = response.output
    assert (call.type, call.name, call.status) == ("function_call", "order", "completed")
    assert json.loads(call.arguments) == {"item": "tea", "count": 2}
    assert response.tools[0].name == "order"
    events = list(respond(client, TEA, tools=[TOOL], tool_choice=choice, stream=True))
    assert kinds(events) == STREAM_OF_CALL
    [streamed] = events[-1].response.output
    assert streamed.arguments == call.arguments
    assert "".join(event.delta for event in events if event.type.endswith("arguments.delta")) == call.arguments
    assert {event.item_id for event in events if "arguments" in event.type} == {streamed.id}


def test_a_format_of_texts_does_not_hold_for_a_call(client):
    """instructor asks in this way."""
    named = {"format": {"type": "json_object"}}
    [call] = respond(client, TEA, tools=[TOOL], tool_choice=NAMED, text=named).output
    assert json.loads(call.arguments) == {"item": "tea", "count": 2}


def test_a_stream_has_all_events_in_order(client):
    events = list(respond(client, stream=True))
    assert kinds(events) == STREAM_OF_TEXT
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 5
    assert "".join(deltas) == events[-1].response.output_text == TEXT
    again = client.responses.retrieve(events[0].response.id)
    assert again.to_dict() == events[-1].response.to_dict()
    for event in events:
        type(event).model_validate_json(event.to_json(), strict=True)


async def test_the_client_s_own_stream_parses(chat_gateway):
    async with (
        openai.AsyncOpenAI(base_url=f"{chat_gateway.url}/v1", api_key="any") as client,
        client.responses.stream(model=MODEL, input=TEA, text_format=Order) as stream,
    ):
        assert (await stream.get_final_response()).output_parsed == Order(item="tea", count=2)


def test_an_answer_that_is_cut_is_incomplete(client):
    response = respond(client, max_output_tokens=4)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.output[0].status, response.usage.output_tokens) == ("incomplete", 4)
    *_, last = respond(client, max_output_tokens=4, stream=True)
    assert last.type == "response.incomplete"
    assert last.response.output_text == response.output_text


def test_logprobs_are_given_where_they_are_included(client):
    response = respond(client, "café", include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = response.output[0].content[0].logprobs
    assert b"".join(bytes(token.bytes) for token in logprobs).decode() == "café"
    assert {len(token.top_logprobs) for token in logprobs} == {2}
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def test_a_stored_response_is_read_listed_and_deleted(client):
    response = respond(client, [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}])
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    items = client.responses.input_items.list(response.id, order="asc")
    assert [item.content[0].text for item in items] == ["one", "two"]
    pages = client.responses.input_items.list(response.id, limit=1)
    assert [item.content[0].text for item in pages] == ["two", "one"]  # the client turns the page
    client.responses.delete(response.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="no stored response"):
            call(response.id)


def test_a_response_that_is_not_stored_is_not_found(client, chat_gateway):
    response = respond(client, store=False)
    assert response.store is False
    chat = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    prediction = chat_gateway.newest()["id"]
    assert chat.id.endswith(prediction)
    for other in (response.id, f"resp_{prediction}", prediction, "resp_", "x"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(other)


def test_a_conversation_goes_on_from_a_stored_response(client, chat_gateway):
    first = respond(client, "one", instructions="Repeat.")
    second = respond(client, "two", instructions="Again.", previous_response_id=first.id)
    third = respond(client, "three", previous_response_id=second.id)
    assert (third.output_text, third.previous_response_id) == ("three", second.id)
    texts = [(one["role"], one["content"]) for one in chat_gateway.newest()["input"]["messages"]]
    asked = [("user", "one"), ("assistant", "one"), ("user", "two"), ("assistant", "two"), ("user", "three")]
    assert texts == asked  # instructions hold for one request
    with pytest.raises(openai.BadRequestError) as caught:
        respond(client, previous_response_id="resp_nothing")
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


def test_a_reference_stands_for_an_item_of_a_stored_answer(client, chat_gateway):
    """The AI SDK sends earlier turns in this way."""
    first = respond(client, "one")
    given = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "two"}]
    second = respond(client, given)
    sent = [(one["role"], one["content"]) for one in chat_gateway.newest()["input"]["messages"]]
    assert (sent, second.output_text) == ([("assistant", "one"), ("user", "two")], "two")
    items = client.responses.input_items.list(second.id, order="asc")
    assert [item.content[0].text for item in items] == ["one", "two"]
    unstored = respond(client, "one", store=False).output[0].id
    for other in (unstored, f"{first.output[0].id}0", "msg_o0", "x", None):
        with pytest.raises(openai.NotFoundError, match="no stored item") as caught:
            respond(client, [{"type": "item_reference", "id": other}])
        assert caught.value.param == "input"


def test_a_response_in_the_background_is_polled_streamed_and_cancelled(client):
    response = respond(client, LONG, background=True)
    assert response.status in ("queued", "in_progress")
    with pytest.raises(openai.BadRequestError) as caught:
        respond(client, previous_response_id=response.id)
    assert caught.value.param == "previous_response_id"
    cancelled = client.responses.cancel(response.id)
    assert (cancelled.status, client.responses.retrieve(response.id).status) == ("cancelled", "cancelled")

    response = respond(client, background=True)
    events = list(client.responses.retrieve(response.id, stream=True))
    assert events[-1].response.output_text == TEXT
    rest = list(client.responses.retrieve(response.id, stream=True, starting_after=5))
    assert [event.to_dict() for event in rest] == [event.to_dict() for event in events[6:]]
    assert client.responses.retrieve(response.id).status == "completed"


def test_a_background_stream_goes_on_without_its_client(client):
    with respond(client, "word " * 30, background=True, stream=True) as stream:
        own_id = next(stream).response.id
    events = list(client.responses.retrieve(own_id, stream=True))
    assert events[-1].type == "response.completed"


def error_of(response: httpx.Response, status: int = 400) -> dict[str, str | None]:
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    return response.json()["error"]


@pytest.mark.parametrize(
    ("parameters", "param", "message"),
    [
        ({"model": "gpt-4"}, "model", "'test' is"),
        ({"input": []}, "input", "at least 1"),
        ({"input": 5}, "input", "list"),
        ({"input": ["hi"]}, "input[0]", "dictionary"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type", "'reasoning' are not supported"),
        ({"input": [{"role": "user"}]}, "input[0].content", "required"),
        ({"input": [{"role": "alien", "content": "x"}]}, "input[0].role", "developer"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type", "text"),
        ({"input": "long " * 4000}, "input", "context"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater"),
        ({"max_tokens": 5}, "max_tokens", "unknown"),
        ({"temperature": -1}, "temperature", "minimum"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"include": ["file_search_call.results"]}, "include[0]", "logprobs"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text", "schema"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": LOOKING_BACK}}}, "text.format", "pattern"),
        ({"text": {"format": {"type": "text", "best": 1}}}, "text.format.best", "unknown"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "function"),
        ({"tools": [TOOL, TOOL], "tool_choice": "required"}, "tools", "two functions"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "not one"),
        ({"tools": [TOOL | {"parameters": LOOKING_BACK}], "tool_choice": "required"}, "tools", "pattern"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"background": True, "store": False}, "background", "store"),
        ({"conversation": "conv_1"}, "conversation", "not supported"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"reasoning": {"effort": "high"}}, "reasoning", "not supported"),
        ({"metadata": {"a": 5}}, "metadata", "string"),
        ({"stream_options": {}}, "stream_options", "needs stream"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_parameter(chat_gateway, parameters, param, message):
    for streamed in ({}, {"stream": True}) if "stream_options" not in parameters else ({},):
        body = {"model": MODEL, "input": "hi", **parameters, **streamed}
        error = error_of(chat_gateway.client.post("/v1/responses", json=body), 404 if param == "model" else 400)
        assert error["param"] == param
        assert message in error["message"]


def test_wrong_queries_and_methods_are_refused_in_openai_s_shape(client, chat_gateway):
    own = f"/v1/responses/{respond(client).id}"
    for query in ("limit=0", "limit=x", "order=up", "after=nothing"):
        error = error_of(chat_gateway.client.get(f"{own}/input_items?{query}"))
        assert error["param"] == query.partition("=")[0]
    assert error_of(chat_gateway.client.get(f"{own}?stream=maybe"))["param"] == "stream"
    error_of(chat_gateway.client.get("/v1/responses"), 405)


def test_a_failure_in_the_middle_of_a_stream_is_raised_and_told(client, chat_gateway):
    body = {"model": MODEL, "input": LONG, "stream": True}
    with chat_gateway.client.stream("POST", "/v1/responses", json=body) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        own_id = json.loads(next(lines)[6:])["response"]["id"]
        client.responses.cancel(own_id)
        *_, told, last = [json.loads(line[6:]) for line in lines]
    assert (told["type"], told["error"]["code"]) == ("error", "canceled")
    assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")
    assert last["sequence_number"] == told["sequence_number"] + 1
    assert client.responses.retrieve(own_id).status == "cancelled"
    with respond(client, LONG, stream=True) as stream:
        client.responses.cancel(next(stream).response.id)
        with pytest.raises(openai.APIError, match="cancelled"):
            list(stream)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_disconnects_cancels_its_response(chat_gateway, streamed):
    with chat_gateway.sent("/v1/responses", {"model": MODEL, "input": LONG, "stream": streamed}):
        own = chat_gateway.newest()
        while LONG not in json.dumps(own["input"]) or not chat_gateway.get(own["id"])["output"]:
            own = chat_gateway.newest()
    assert chat_gateway.wait_for(own["id"], "canceled", "succeeded", "failed")["status"] == "canceled"


def test_responses_are_kept_when_the_gateway_restarts_and_belong_to_their_key(chat_cog, tmp_path):
    keys = make_keys(tmp_path, "alice", "bob")

    def client_of(gateway, name):
        return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=keys[name], max_retries=0)

    with GatewayServer([chat_cog.url], tmp_path, keys=keys, KEYS="required") as gateway:
        response = respond(client_of(gateway, "alice"))
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="wrong", max_retries=0).responses.retrieve(response.id)
    with GatewayServer([chat_cog.url], tmp_path, keys=keys, KEYS="required") as gateway:
        assert client_of(gateway, "alice").responses.retrieve(response.id).to_dict() == response.to_dict()
        for call in ("retrieve", "delete", "cancel"):
            with pytest.raises(openai.NotFoundError):
                getattr(client_of(gateway, "bob").responses, call)(response.id)
        with pytest.raises(openai.BadRequestError):
            respond(client_of(gateway, "bob"), previous_response_id=response.id)


class Lines(BaseModel):
    lines: list[Order]


def test_of_several_required_tools_the_model_chooses_one(client):
    tools = [{**TOOL, "name": "other"}, {**TOOL, "name": "orders", "parameters": Lines.model_json_schema()}]
    text = json.dumps({"name": "orders", "arguments": {"lines": [{"item": "}", "count": 1}]}})
    [call] = respond(client, text, tools=tools, tool_choice="required").output
    assert (call.name, json.loads(call.arguments)) == ("orders", {"lines": [{"item": "}", "count": 1}]})
    *_, last = respond(client, text, tools=tools, tool_choice="required", stream=True)
    assert last.response.output[0].arguments == call.arguments


def test_a_package_of_one_text_answers_and_has_no_conversation(schema_gateway):
    with openai.OpenAI(base_url=f"{schema_gateway.url}/v1", api_key="any", max_retries=0) as client:
        response = respond(client, TEA)
        assert json.loads(response.output_text) == {"item": "tea", "count": 2}
        for name, value, param in (
            ("instructions", "x", "input"),
            ("previous_response_id", response.id, "previous_response_id"),
            ("top_p", 0.5, "top_p"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                respond(client, TEA, **{name: value})
            assert caught.value.param == param


def test_fuzzed_bodies_get_an_answer_or_an_error_in_openai_s_shape(chat_gateway):
    rng = random.Random(43)
    values = [
        *(None, True, 0, -1, 2**64, 10**40, 0.5, -1e300, "", "x", "\u0000", "text", "required", "auto", "resp_x"),
        *([], [[]], {}, [None], [{}], {"a": {}}, {"a": "b"}, ["message.output_text.logprobs"], [TOOL], NAMED),
        *(
            {"format": {"type": "text"}},
            {"format": {}},
            [{"type": "function_call"}],
            [{"role": "user", "content": [[]]}],
        ),
        [{"type": "function_call", "call_id": "a", "name": "b", "arguments": "{"}, {"role": "user", "content": ""}],
        [{"type": 5}, {"role": "user", "content": [{"type": "input_text"}]}],
    ]
    names = sorted(ResponsesBody.model_fields)
    for _ in range(120):
        body = {"model": MODEL, "input": "hi", "max_output_tokens": 4}
        for name in rng.sample(names, rng.choice([1, 1, 2, 3])):
            body[name] = rng.choice(values)
        response = chat_gateway.client.post("/v1/responses", content=json.dumps(body))
        if response.status_code != 200:
            assert response.status_code < 500, (body, response.text)
            error_of(response, response.status_code)
        elif response.headers["content-type"].startswith("text/event-stream"):
            last = json.loads(response.text.rpartition("data: ")[2])
            assert last["type"] in ("response.completed", "response.incomplete"), body
        else:
            assert response.json()["object"] == "response", body
