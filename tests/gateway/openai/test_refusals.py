"""What is refused, always in OpenAI's error object, with the parameter that is wrong."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.gateway.gateway_server import GatewayServer
from tests.gateway.openai.conftest import MODEL, client_of

pytestmark = pytest.mark.server
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "string", "pattern": "(a)\\1"}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


OTHER = {"type": "function", "function": {"name": "other"}}
TOGETHER = ("response_format", "together")


def tool(schema=None):
    return {"type": "function", "function": {"name": "order", "parameters": schema or {"type": "object"}}}


def post(gateway, path="chat/completions", **parameters):
    body = {"model": MODEL, **({"messages": HI} if path.startswith("chat") else {"prompt": "hi"}), **parameters}
    return gateway.client.post(f"/v1/{path}", json=body)


def error_of(response: httpx.Response, status: int) -> dict[str, str | None]:
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    error = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return error


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("embeddings", "makes no embeddings"),
        ("audio/speech", "text only"),
        ("fine_tuning/jobs", "scripts/train"),
        ("threads/thread_1/runs", "previous_response_id"),
        ("messages", "Anthropic"),
        ("vector_stores", "stores responses"),
        ("nothing", "/v1/responses and /v1/models are"),
    ],
)
def test_an_endpoint_that_is_missing_is_refused_in_openai_s_shape_and_says_why(chat_gateway, path, reason):
    for response in (post(chat_gateway, path), chat_gateway.client.get(f"/v1/{path}")):
        error = error_of(response, 404)
        assert (error["type"], error["code"]) == ("not_found_error", "unsupported_endpoint")
        assert f"/v1/{path}" in error["message"]
        assert reason in error["message"]


def test_the_official_client_says_why_there_are_no_embeddings(client):
    with pytest.raises(openai.NotFoundError, match="ask another server"):
        client.embeddings.create(model=MODEL, input="x")


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_unknown_parameters_are_refused_by_name(chat_gateway, path):
    for name in ("guided_json", "best", "max_new_tokens", "__class__"):
        error = error_of(post(chat_gateway, path, **{name: {"type": "object"}}), 400)
        assert (error["param"], error["code"], error["type"]) == (name, "unknown_parameter", "invalid_request_error")
        assert repr(name) in error["message"]


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "response_format.schema"),
        ({"tools": [tool() | {"strict": True}]}, "tools[0].strict"),
    ],
)
def test_an_unknown_parameter_inside_another_is_named_with_its_place(chat_gateway, parameters, param):
    error = error_of(post(chat_gateway, **parameters), 400)
    assert (error["param"], error["code"]) == (param, "unknown_parameter")
    assert repr(param) in error["message"]


@pytest.mark.parametrize(
    ("parameters", "param", "message"),
    [
        ({"model": "gpt-4"}, "model", "'test' is"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "user"}]}, "messages[0]", "has no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "not a text"),
        ({"messages": [*HI, {"role": "alien", "content": "x"}, 5]}, "messages[2]", "dictionary"),
        ({"messages": [{"role": "user", "content": "long " * 4000}]}, "messages", "context"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": -1}, "temperature", "minimum"),
        ({"top_p": 1.5}, "top_p", "maximum"),
        ({"presence_penalty": 1}, "presence_penalty", "leave"),  # the fake engine has none
        ({"max_tokens": 0}, "max_tokens", "greater"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "differs"),
        ({"n": 17}, "n", "16"),
        ({"stop": ["a", 5]}, "stop", "string"),
        ({"stop": ""}, "stop", "empty"),
        ({"seed": -1}, "seed", "greater"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "grammar"}}, "response_format", "json_object"),
        ({"response_format": JSON_SCHEMA}, "response_format", "pattern"),
        ({"tools": [tool()], "response_format": JSON_SCHEMA}, "response_format", "pattern"),
        ({"tools": [tool(schema=SCHEMA)]}, "tools[0].function.parameters", "is no JSON Schema of an object"),
        ({"tools": [tool(schema={"properties": {"a": SCHEMA}})]}, "tools", "the tool 'order': the JSON schema"),
        ({"tools": [tool(), tool()], "tool_choice": "required"}, "tools", "two functions"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [tool()], "tool_choice": OTHER}, "tool_choice", '"other" is not one'),
        ({"tools": [tool()], "tool_choice": "required", "response_format": {"type": "json_object"}}, *TOGETHER),
        ({"tools": [tool(schema=SCHEMA)], "tool_choice": "required"}, "tools", "pattern"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "leave it out"),
        ({"store": True}, "store", "not supported"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not supported"),
        ({"functions": [{"name": "f"}]}, "functions", "not supported"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_parameter(chat_gateway, parameters, param, message):
    for streamed in ({}, {"stream": True}) if "stream_options" not in parameters else ({},):
        error = error_of(post(chat_gateway, **parameters, **streamed), 404 if param == "model" else 400)
        assert error["param"] == param
        assert message in error["message"]
        assert "Prediction failed" not in error["message"]


def test_what_completions_cannot_honour_is_refused_with_its_parameter(chat_gateway):
    for param, value in (("echo", True), ("best_of", 2), ("suffix", "x"), ("prompt", [1, 2]), ("prompt", "")):
        assert error_of(post(chat_gateway, "completions", **{param: value}), 400)["param"] == param
    assert error_of(post(chat_gateway, "completions", prompt=["a"] * 4, n=5), 400)["param"] == "n"


def test_parameters_at_the_value_that_changes_nothing_are_accepted(chat_gateway):
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "n": 1, "top_logprobs": None}
    neutral |= {"logprobs": False, "stop": None, "store": False, "metadata": {}, "service_tier": "auto", "tools": []}
    neutral |= {"modalities": ["text"], "response_format": {"type": "text"}, "user": "somebody", "stream": False}
    neutral |= {"parallel_tool_calls": True}
    assert post(chat_gateway, **neutral).json()["choices"][0]["message"]["content"] == "hi"


def test_an_adapter_that_the_server_does_not_have_is_refused(chat_gateway):
    error = error_of(post(chat_gateway, adapter="nowhere"), 400)
    assert error["param"] == "adapter"
    assert "adapter 'nowhere' is unknown; this server has none" in error["message"]


def test_a_body_that_cannot_be_read_is_refused(chat_gateway):
    for content in (b"", b"{", b"[]", b'"text"', b"\xff", b'{"model": NaN}', b"[" * 100_000):
        error_of(chat_gateway.client.post("/v1/chat/completions", content=content), 400)
    error_of(chat_gateway.client.get("/v1/chat/completions"), 405)
    error_of(chat_gateway.client.post("/v1/chat/other"), 404)
    error_of(chat_gateway.client.get("/v1/models/other"), 404)


def test_bodies_over_the_limit_and_requests_over_it_are_refused(chat_cog, tmp_path):
    settings = {"MAX_BODY_BYTES": 2048, "MAX_ACTIVE": 1}
    with GatewayServer([chat_cog.url], tmp_path, **settings) as gateway:
        error_of(post(gateway, user="x" * 3000), 413)
        with client_of(gateway) as client:
            long = [{"role": "user", "content": "word " * 300}]
            with client.chat.completions.create(model=MODEL, messages=long, stream=True) as stream:
                next(stream)
                with pytest.raises(openai.RateLimitError) as caught:
                    client.chat.completions.create(model=MODEL, messages=HI)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.type == "rate_limit_error"
        # The client went away in the middle of the stream, so there is room again; the client retries until there is.
        with client_of(gateway, max_retries=9) as client:
            answer = client.chat.completions.create(model=MODEL, messages=HI)
        assert answer.choices[0].message.content == "hi"
        error_of(post(gateway, n=2), 429)


def test_an_error_in_the_middle_of_a_stream_takes_a_chunk_s_place(chat_gateway):
    """A stop sequence that ends JSON too early is found when some of it has been sent."""
    wrong = {"response_format": {"type": "json_object"}, "stop": "count"}
    messages = [{"role": "user", "content": '{"item": "tea", "count": 2}'}]
    error = error_of(post(chat_gateway, messages=messages, **wrong), 400)
    assert "give stop_sequences that cannot occur in it" in error["message"]
    response = post(chat_gateway, messages=messages, stream=True, **wrong)
    assert response.status_code == 200
    *_, text, failed, done, end = response.text.split("\n\n")
    assert json.loads(text.removeprefix("data: "))["choices"][0]["delta"]["content"]
    assert json.loads(failed.removeprefix("data: ")) == {"error": error}
    assert (done, end) == ("data: [DONE]", "")
    with client_of(chat_gateway) as client:
        chunks = client.chat.completions.create(model=MODEL, messages=messages, stream=True, **wrong)
        with pytest.raises(openai.APIError, match="stop_sequences"):
            list(chunks)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_disconnects_cancels_its_prediction(chat_gateway, streamed):
    messages = [{"role": "user", "content": "word " * 300}]
    with chat_gateway.sent("/v1/chat/completions", {"model": MODEL, "messages": messages, "stream": streamed}):
        own = chat_gateway.newest()
        while own["input"]["messages"] != messages or not chat_gateway.get(own["id"])["output"]:
            own = chat_gateway.newest()
    assert chat_gateway.wait_for(own["id"], "canceled", "succeeded", "failed")["status"] == "canceled"


def test_fuzzed_bodies_get_an_answer_or_an_error_in_openai_s_shape(chat_gateway):
    rng = random.Random(20)
    values = [
        *(None, True, False, 0, 1, -1, 2**31, 2**64, 10**40, 0.5, -1e300, 1e308, "", "x", "text", "\u0000", "🙂" * 50),
        *([], [[]], {}, {"a": {}}, [None], HI, {"type": "function"}, {"type": "json_object"}, [tool()], "required"),
        {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/nowhere"}}},
        {"type": "json_schema", "json_schema": {"schema": {"enum": [1e308, 10**30]}}},
    ]
    names = ["model", "messages", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "stream"]
    names += ["stream_options", "response_format", "tools", "tool_choice", "logprobs", "top_logprobs", "max_tokens"]
    names += ["max_completion_tokens", "user", "logit_bias", "documents", "chat_template_kwargs", "min_tokens"]
    names += ["add_generation_prompt", "frequency_penalty", "repetition_penalty", "prompt", "unknown", "echo"]
    requests = []
    for number in range(300):
        path = rng.choice(["chat/completions", "chat/completions", "completions"])
        body = {"model": MODEL, **({"messages": HI} if path.startswith("chat") else {"prompt": "hi"}), "max_tokens": 4}
        for name in rng.sample(names, rng.choice([0, 1, 1, 2, 3])):
            body[name] = rng.choice(values)
        content = json.dumps(body).encode()
        if number % 10 == 0:
            at = rng.randrange(len(content))
            content = content[:at] + rng.randbytes(rng.choice([0, 1, 3])) + content[at + rng.choice([0, 1, 5]) :]
        requests.append((f"/v1/{path}", content))

    def check(request: tuple[str, bytes]) -> int:
        path, content = request
        response = chat_gateway.client.post(path, content=content)
        if response.status_code != 200:
            error_of(response, response.status_code)
            assert response.status_code < 500, (content, response.text)
        elif response.headers["content-type"].startswith("text/event-stream"):
            assert response.text.endswith("data: [DONE]\n\n"), content
            assert '"error"' not in response.text, content
        return response.status_code

    with ThreadPoolExecutor(8) as pool:
        assert {200, 400, 404} <= set(pool.map(check, requests))
