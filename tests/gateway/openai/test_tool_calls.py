"""Calls of functions with the official openai client."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from tests.gateway.openai.conftest import MODEL, TEXT, Order, ask

pytestmark = pytest.mark.server


def tool(name="order"):
    return {"type": "function", "function": {"name": name, "parameters": Order.model_json_schema()}}


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "order"}}, "required"])
def test_a_forced_tool_is_called_with_arguments_of_its_schema(client, choice):
    text = '{"item": "tea", "count": 2}'
    answer = ask(client, text, tools=[tool()], tool_choice=choice, parallel_tool_calls=False)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    (call,) = message.tool_calls
    assert (call.type, call.function.name) == ("function", "order")
    assert Order.model_validate_json(call.function.arguments) == Order(item="tea", count=2)

    chunks = list(ask(client, text, tools=[tool()], tool_choice=choice, stream=True))
    deltas = [chunk.choices[0].delta.tool_calls[0] for chunk in chunks[:-1]]
    assert (deltas[0].function.name, deltas[0].id[:5]) == ("order", "call_")
    assert Order.model_validate_json("".join(one.function.arguments for one in deltas)) == Order(item="tea", count=2)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


class Lines(BaseModel):
    lines: list[Order]  # a schema that refers to its own parts


CHOICES = [
    tool("now"),
    {"type": "function", "function": {"name": "orders", "parameters": Lines.model_json_schema()}},
    {"type": "function", "function": {"name": 'a "b"'}},
]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("now", {"item": "tea", "count": 2}), ("orders", {"lines": [{"item": "}", "count": 1}]}), ('a "b"', {})],
)
def test_of_several_required_tools_the_model_chooses_one(client, name, arguments):
    text = json.dumps({"name": name, "arguments": arguments})
    answer = ask(client, text, tools=CHOICES, tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (name, arguments)
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("tool_calls", None)

    parameters = {"messages": [{"role": "user", "content": text}], "tools": CHOICES, "tool_choice": "required"}
    with client.chat.completions.stream(model=MODEL, n=2, **parameters) as stream:
        final = stream.get_final_completion()
    for choice in final.choices:
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == (name, arguments)
        assert choice.finish_reason == "tool_calls"


def test_choices_begin_in_the_order_of_their_numbers(client):
    """OpenAI's client fails if a later one begins first."""
    for _ in range(5):
        chunks = list(ask(client, "{}", tools=[tool()], tool_choice="required", n=5, stream=True))
        begun = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].delta.role]
        assert begun == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("max_tokens", (1, 9, 17, 25, 29))
def test_a_chosen_call_that_is_cut_has_the_reason_length(client, max_tokens):
    text = json.dumps({"name": "now", "arguments": {"item": "tea", "count": 2}})
    limits = {"tools": CHOICES, "tool_choice": "required", "max_tokens": max_tokens}
    (whole,) = ask(client, text, **limits).choices
    (call,) = whole.message.tool_calls or [None]
    streamed = ""
    for chunk in ask(client, text, **limits, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            streamed += delta.function.arguments
    assert whole.finish_reason == chunk.choices[0].finish_reason
    assert streamed == ("" if call is None else call.function.arguments)
    if whole.finish_reason == "length":
        assert text.endswith("}}")
        assert streamed in text


def test_a_tool_without_parameters_is_called_without_arguments(client):
    nothing = {"type": "function", "function": {"name": "now"}}
    answer = ask(client, tools=[nothing], tool_choice="required")
    assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments) == {}


def test_tools_that_must_not_be_called_are_not_called(client):
    assert ask(client, tools=[tool()], tool_choice="none").choices[0].message.content == TEXT
