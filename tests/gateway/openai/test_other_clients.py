"""Other clients, unmodified, with only an address and a key; packages that take texts; the documented example."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import instructor
import openai
import pytest
from langchain_openai import ChatOpenAI

from tasks.honeycomb.query import parse_query
from tests.gateway.gateway_server import ROOT
from tests.gateway.openai.conftest import MODEL, ORDER, Order, ask, client_of

pytestmark = pytest.mark.server
TEXT = '{"item": "tea", "count": 2}'
MESSAGES = [{"role": "user", "content": TEXT}]
TEA = Order(item="tea", count=2)


@pytest.mark.parametrize("mode", [None, instructor.Mode.JSON_SCHEMA])
def test_instructor_gets_an_object_of_its_model(client, mode):
    """Without a mode it forces a tool."""
    asking = instructor.from_openai(client, **({} if mode is None else {"mode": mode}))
    order = asking.chat.completions.create(model=MODEL, messages=MESSAGES, response_model=Order, max_retries=0)
    assert order.model_dump() == TEA.model_dump()


def test_instructor_streams_a_growing_object(client):
    partial = instructor.from_openai(client).chat.completions.create_partial(
        model=MODEL, messages=MESSAGES, response_model=Order
    )
    *earlier, last = list(partial)
    assert (last.item, last.count) == ("tea", 2)
    assert earlier


@pytest.fixture
def chat(chat_gateway):
    return ChatOpenAI(model=MODEL, base_url=f"{chat_gateway.url}/v1", api_key="any", max_retries=0)


async def test_langchain_asks_streams_and_binds_stop(chat):
    answer = chat.invoke([("system", "Repeat."), ("human", "one, two")])
    assert answer.content == "one, two"
    assert answer.usage_metadata["output_tokens"] > 1
    assert answer.response_metadata["finish_reason"] == "stop"
    assert "".join([chunk.content async for chunk in chat.astream("one, two, three")]) == "one, two, three"
    assert chat.bind(stop=[", t"]).invoke("one, two").content == "one"


@pytest.mark.parametrize("method", [None, "function_calling", "json_schema"])
def test_langchain_gets_an_object_of_its_model(chat, method):
    structured = chat.with_structured_output(Order, **({} if method is None else {"method": method}))
    assert structured.invoke(TEXT) == TEA


def test_a_schema_package_takes_the_user_s_message(schema_gateway):
    with client_of(schema_gateway) as client:
        answer = ask(client, TEXT, temperature=0, top_p=1, n=1)
        assert json.loads(answer.choices[0].message.content) == {"item": "tea", "count": 2}
        answer = client.completions.create(model=MODEL, prompt=TEXT, max_tokens=3)
        assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 3)
        for param, value in (
            ("messages", [{"role": "system", "content": "x"}, *MESSAGES]),
            ("messages", [{"role": "user", "content": " "}]),
            ("top_p", 0.5),
            ("stop", "x"),
            ("logprobs", True),
            ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": ORDER}}),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, param: value})
            assert caught.value.param == param


def test_a_package_with_several_texts_takes_a_json_object_of_them(gateway):
    with client_of(gateway) as client:
        answer = ask(client, json.dumps({"cols": "a,b", "nlq": "how many?"})).choices[0].message.content
        assert parse_query(answer, ["a", "b"]).filters[0].value == "how many?"
        for text in ("how many?", "[]", '{"nlq": "how many?"}', '{"nlq": 5, "cols": "a"}', '{"nlq": " ", "cols": "a"}'):
            with pytest.raises(openai.BadRequestError) as caught:
                ask(client, text)
            assert caught.value.param == "messages"


def test_the_example_of_openai_s_api_prints_the_answer(chat_gateway):
    section = (ROOT / "docs" / "http-api.md").read_text("utf-8").partition("## OpenAI's API")[2]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    assert "http://127.0.0.1:8080/v1" in example
    code = example.replace("http://127.0.0.1:8080", chat_gateway.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "Name three colours."
