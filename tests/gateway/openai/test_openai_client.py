"""The official openai client, with only its address and key set, against the gateway and a real Cog server."""

from __future__ import annotations

import json

import openai
import pytest

from pipeline.package.new_package import predict_source
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.openai.conftest import MODEL, TEXT, Order, ask, client_of, start_package
from tests.gateway.openai.conftest import ORDER as ORDER_SCHEMA

pytestmark = pytest.mark.server
ORDER = '{"item": "tea", "count": 2}'


def test_a_conversation_gets_an_answer(client):
    answer = client.chat.completions.create(
        model=f"local/{MODEL}",
        messages=[
            {"role": "system", "content": "Repeat."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": [{"type": "text", "text": "two,"}, {"type": "text", "text": "three"}]},
        ],
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "two,\nthree")
    assert (choice.finish_reason, choice.logprobs, choice.message.tool_calls) == ("stop", None, None)
    assert answer.usage.prompt_tokens > answer.usage.completion_tokens > 1
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_system_message_is_the_input_system_prompt_where_a_package_has_it(tmp_path, tmp_path_factory):
    """The fake engine repeats the prompt, of which the system message is the begin."""
    task = {"task": "schema", "name": "tiny", "schema": ORDER_SCHEMA, "template": "{system_prompt}{prompt}"}
    task |= {"inputs": ["system_prompt", "prompt"], "defaults": {"system_prompt": '{"item": "tea'}}
    with (
        start_package(tmp_path_factory.mktemp("system"), predict_source(task), task) as cog,
        GatewayServer([cog.url], tmp_path) as gateway,
    ):
        client, user = client_of(gateway), {"role": "user", "content": 'pot", "count": 2}'}

        def item(*messages):
            answer = client.chat.completions.create(model=MODEL, messages=messages)
            return json.loads(answer.choices[0].message.content)["item"]

        assert item(user) == "teapot", "the default"
        for role in ("system", "developer"):
            assert item({"role": role, "content": '{"item": "coffee'}, user) == "coffeepot"
        picture = {"role": "system", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
        for wrong in ([user, user], [{"role": "system", "content": "x"}], [picture, user]):
            with pytest.raises(openai.BadRequestError, match="one text and no conversation"):
                item(*wrong)


def test_an_answer_is_streamed_in_the_official_order(client):
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1
    first, *middle, last, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert len(middle) > 5
    assert "".join(chunk.choices[0].delta.content for chunk in middle) == TEXT
    assert last.choices[0].finish_reason == "stop"
    assert [chunk.choices[0].finish_reason for chunk in middle] == [None] * len(middle)
    assert usage.choices == []
    assert usage.usage.completion_tokens == ask(client).usage.completion_tokens


async def test_the_asynchronous_client_streams(chat_gateway):
    async with openai.AsyncOpenAI(base_url=f"{chat_gateway.url}/v1", api_key="any") as client:
        stream = await ask(client, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT


def test_the_finish_reason_is_length_at_the_limit_of_tokens(client):
    for parameters in ({"max_tokens": 4}, {"max_completion_tokens": 4}):
        answer = ask(client, **parameters)
        assert answer.choices[0].finish_reason == "length"
        assert TEXT.startswith(answer.choices[0].message.content)
        assert answer.usage.completion_tokens == 4
    chunks = list(ask(client, stream=True, max_tokens=4))
    assert chunks[-1].choices[0].finish_reason == "length"


def test_stop_takes_a_text_or_a_list_of_texts_with_commas(client):
    assert ask(client, "red, green, blue", stop=", b").choices[0].message.content == "red, green"
    answer = ask(client, "red, green, blue", stop=["x,y", ", g"])
    assert answer.choices[0].message.content == "red"
    assert answer.choices[0].finish_reason == "stop"
    assert ask(client, "red, green", stop=[]).choices[0].message.content == "red, green"


def test_a_seed_repeats_a_sampled_answer_and_several_answers_differ(client):
    def texts(seed):
        return [choice.message.content for choice in ask(client, temperature=1, seed=seed, n=3).choices]

    assert texts(7) == texts(7) != texts(0)
    assert len(set(texts(7))) == 3


def test_several_answers_are_streamed_beside_each_other(client):
    texts, ends = ["", ""], ["", ""]
    for chunk in ask(client, n=2, temperature=1, seed=7, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason
    assert texts == [c.message.content for c in ask(client, n=2, temperature=1, seed=7).choices]
    assert ends == ["stop", "stop"]


def test_a_prompt_counts_once_however_many_answers_it_has(client):
    one, three = ask(client).usage, ask(client, n=3).usage
    assert (three.prompt_tokens, three.completion_tokens) == (one.prompt_tokens, 3 * one.completion_tokens)


def test_logprobs_have_every_token_with_the_likeliest_beside_it(client):
    for parameters in ({}, {"stream": True}):
        answer = ask(client, "café", logprobs=True, top_logprobs=2, **parameters)
        last = list(answer)[-1] if parameters else answer
        content = last.choices[0].logprobs.content
        assert b"".join(bytes(token.bytes) for token in content).decode() == "café"
        assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in content)
    assert ask(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_an_answer_follows_the_response_format(client):
    messages = [{"role": "user", "content": ORDER}]
    parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Order)
    assert parsed.choices[0].message.parsed == Order(item="tea", count=2)
    with client.chat.completions.stream(model=MODEL, messages=messages, response_format=Order) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Order(item="tea", count=2)
    text = f"Sure! {ORDER}"
    anything = ask(client, text, response_format={"type": "json_object"}).choices[0].message.content
    assert isinstance(json.loads(anything), dict)
    assert ask(client, text, response_format={"type": "text"}).choices[0].message.content == text


def test_json_that_reaches_the_limit_of_tokens_is_an_answer_of_the_reason_length(client):
    schema = {"type": "json_schema", "json_schema": {"name": "order", "schema": Order.model_json_schema()}}
    answer = ask(client, ORDER, response_format=schema, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert ORDER.startswith(answer.choices[0].message.content)
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=MODEL, messages=messages, response_format=Order, max_tokens=3)


def test_prompts_are_completed(client):
    answer = client.completions.create(model=MODEL, prompt=["one", "two"], n=2, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["one", "one", "two", "two"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert "".join(answer.choices[2].logprobs.tokens) == "two"
    assert answer.choices[2].logprobs.text_offset[0] == 0
    assert [len(one) for one in answer.choices[2].logprobs.top_logprobs] == [1] * len(answer.choices[2].logprobs.tokens)
    assert answer.object == "text_completion"
    streamed = list(client.completions.create(model=MODEL, prompt=TEXT, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == TEXT
    assert streamed[-1].choices[0].finish_reason == "stop"


def test_the_model_is_listed_and_found(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "local"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
