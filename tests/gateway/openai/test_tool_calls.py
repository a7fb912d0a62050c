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


CALLS = '<tool_call>\n{"name": "order", "arguments": {"item": "}\\n", "count": 2}}\n</tool_call>'
TWO_CALLS = CALLS + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
CHOSEN = [tool(), {"type": "function", "function": {"name": "now"}}]


@pytest.mark.parametrize("before", ["", "Let me see."])
@pytest.mark.parametrize(("text", "names"), [(CALLS, ["order"]), (TWO_CALLS, ["order", "now"])])
@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
def test_the_model_chooses_to_call(client, before, text, names, choice):
    parameters = {"messages": [{"role": "user", "content": before + text}], "tools": CHOSEN, **choice}
    answer = client.chat.completions.create(model=MODEL, **parameters)
    with client.chat.completions.stream(model=MODEL, **parameters) as stream:
        streamed = stream.get_final_completion()
    for found in (answer, streamed):
        message = found.choices[0].message
        assert (found.choices[0].finish_reason, message.content or "") == ("tool_calls", before)
        assert [call.function.name for call in message.tool_calls] == names
        assert json.loads(message.tool_calls[0].function.arguments) == {"item": "}\n", "count": 2}
        assert len({call.id for call in message.tool_calls}) == len(names)
        assert all(call.id.startswith("call_") for call in message.tool_calls)


def test_the_model_chooses_to_write_a_text(client):
    answer = ask(client, tools=CHOSEN)
    message = answer.choices[0].message
    assert (answer.choices[0].finish_reason, message.content, message.tool_calls) == ("stop", TEXT, None)
    chunks = list(ask(client, tools=CHOSEN, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert len([chunk for chunk in chunks if chunk.choices[0].delta.content]) > 3, "as it is written"
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_beside_tools_a_text_follows_its_format(client, api):
    """OpenAI's rule: the format is that of an answer without calls."""
    said = '{"item": "<tool_call>", "count": 2}'
    if api == "chat":
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": Order.model_json_schema()}}
        for text, calls in ((said, None), (CALLS, ["order"]), (TWO_CALLS, ["order", "now"])):
            parameters = {"messages": [{"role": "user", "content": text}], "tools": CHOSEN, "response_format": form}
            answer = client.chat.completions.create(model=MODEL, **parameters)
            with client.chat.completions.stream(model=MODEL, **parameters) as stream:
                streamed = stream.get_final_completion()
            for found in (answer.choices[0].message, streamed.choices[0].message):
                assert (found.content or None) == (None if calls else said)
                assert [call.function.name for call in found.tool_calls or []] == (calls or [])
        cut = ask(client, said, tools=CHOSEN, response_format=form, max_tokens=6).choices[0]
        assert cut.finish_reason == "length"
        assert said.startswith(cut.message.content)
        return
    tools = [{"type": "function", **one["function"]} for one in CHOSEN]
    form = {"format": {"type": "json_schema", "name": "a", "schema": Order.model_json_schema()}}
    assert client.responses.create(model=MODEL, input=said, tools=tools, text=form).output_text == said
    [call] = client.responses.create(model=MODEL, input=CALLS, tools=tools, text=form).output
    assert json.loads(call.arguments) == {"item": "}\n", "count": 2}
    *_, last = client.responses.create(model=MODEL, input=said, tools=tools, text=form, stream=True)
    assert last.response.output_text == said


def test_without_parallel_calls_there_is_one(client):
    message = ask(client, TWO_CALLS, tools=CHOSEN, parallel_tool_calls=False).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["order"]


@pytest.mark.parametrize("max_tokens", [1, 5, 12, 20, 30])
def test_a_call_that_is_cut_is_left_out(client, max_tokens):
    answer = ask(client, "So. " + CALLS, tools=CHOSEN, max_tokens=max_tokens).choices[0]
    assert (answer.finish_reason, answer.message.tool_calls) == ("length", None)
    assert "So. ".startswith(answer.message.content)
    last = list(ask(client, CALLS, tools=CHOSEN, max_tokens=max_tokens, stream=True))[-1]
    assert last.choices[0].finish_reason == "length"


def test_the_answer_goes_on_after_a_call(client):
    message = ask(client, CALLS, tools=CHOSEN).choices[0].message
    call = message.tool_calls[0]
    messages = [
        {"role": "user", "content": "tea"},
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "It is ordered."},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=CHOSEN).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content == "<tool_response>\nIt is ordered.\n</tool_response>"


def test_the_responses_api_has_the_same_choices(client):
    tools = [{"type": "function", **one["function"]} for one in CHOSEN]
    text, order, now = client.responses.create(model=MODEL, input="Let me see." + TWO_CALLS, tools=tools).output
    assert (text.content[0].text, order.name, now.name, now.arguments) == ("Let me see.", "order", "now", "{}")
    with client.responses.stream(model=MODEL, input="Let me see." + TWO_CALLS, tools=tools) as stream:
        kinds = [event.type for event in stream]
        output = stream.get_final_response().output
    assert [item.type for item in output] == ["message", "function_call", "function_call"]
    assert (output[0].content[0].text, output[1].arguments) == ("Let me see.", order.arguments)
    assert kinds.count("response.function_call_arguments.done") == 2
    given = {"type": "function_call_output", "call_id": now.call_id, "output": "noon"}
    assert client.responses.create(model=MODEL, input=TEXT, tools=tools).output_text == TEXT
    earlier = client.responses.create(model=MODEL, input=TWO_CALLS, tools=tools)
    following = client.responses.create(model=MODEL, input=[given], tools=tools, previous_response_id=earlier.id)
    assert "noon" in following.output_text
