"""Asks a gateway with the packages of requirements/clients.txt; `ask.py` runs each function `row_…`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import agents
import instructor
import litellm
import mcp
import openai
import replicate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

URL, MODEL = sys.argv[1:3]
BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
TEXT = "one, two, three"
TEA = '{"item": "tea", "count": 2}'
CALL = f'<tool_call>\n{{"name": "order", "arguments": {TEA}}}\n</tool_call>'
MESSAGES = [{"role": "user", "content": TEXT}]
TEA_MESSAGES = [{"role": "user", "content": TEA}]
CLIENT = openai.OpenAI(max_retries=0)
ASYNC = openai.AsyncOpenAI(max_retries=0)
LITELLM = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY, "max_retries": 0}


class Order(BaseModel):
    item: str
    count: int


def order(item: str, count: int) -> str:
    """Order something."""
    return f"{count} x {item}"


FUNCTION = {"name": "order", "parameters": Order.model_json_schema()}


def row_openai_chat() -> object:
    return CLIENT.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content


def row_openai_chat_stream() -> object:
    chunks = CLIENT.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def row_openai_chat_parse() -> object:
    parsed = CLIENT.chat.completions.parse(model=MODEL, messages=TEA_MESSAGES, response_format=Order)
    return parsed.choices[0].message.parsed


def row_openai_chat_tool() -> object:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    answer = CLIENT.chat.completions.create(model=MODEL, messages=TEA_MESSAGES, tools=tools, tool_choice="required")
    return json.loads(answer.choices[0].message.tool_calls[0].function.arguments)


def row_openai_chat_tool_auto() -> object:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    messages = [{"role": "user", "content": CALL}]
    with CLIENT.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    return json.loads(call.function.arguments)


def row_openai_responses() -> object:
    first = CLIENT.responses.create(model=MODEL, input="one")
    second = CLIENT.responses.create(model=MODEL, input=TEXT, previous_response_id=first.id)
    return CLIENT.responses.retrieve(second.id).output_text


def row_openai_responses_stream() -> object:
    with CLIENT.responses.stream(model=MODEL, input=TEXT) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text
        return text


def row_openai_responses_parse() -> object:
    return CLIENT.responses.parse(model=MODEL, input=TEA, text_format=Order).output_parsed


def row_openai_responses_tool() -> object:
    tools: Any = [{"type": "function", **FUNCTION}]
    [call] = CLIENT.responses.create(model=MODEL, input=TEA, tools=tools, tool_choice="required").output
    return json.loads(call.arguments)


def row_openai_responses_tool_auto() -> object:
    tools: Any = [{"type": "function", **FUNCTION}]
    message, call = CLIENT.responses.create(model=MODEL, input=TEXT + CALL, tools=tools).output
    return message.content[0].text, json.loads(call.arguments)


def row_openai_embeddings() -> object:
    return CLIENT.embeddings.create(model=MODEL, input=TEXT).data


def row_replicate_run() -> object:
    client = replicate.Client(base_url=URL, api_token=KEY)
    return "".join(client.run(f"local/{MODEL}", input={"prompt": TEXT}))


def row_replicate_stream() -> object:
    client = replicate.Client(base_url=URL, api_token=KEY)
    return "".join(map(str, client.stream(f"local/{MODEL}", input={"prompt": TEXT})))


def _langchain(**more: Any) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, max_retries=0, **more)


def row_langchain_chat() -> object:
    return "".join(chunk.text for chunk in _langchain().stream(TEXT))


def row_langchain_json_schema() -> object:
    return _langchain().with_structured_output(Order, method="json_schema").invoke(TEA)


def row_langchain_function_calling() -> object:
    return _langchain().with_structured_output(Order, method="function_calling").invoke(TEA)


def row_langchain_json_mode() -> object:
    return _langchain().with_structured_output(Order, method="json_mode").invoke(TEA)


def row_langchain_bind_tools_required() -> object:
    return _langchain().bind_tools([order], tool_choice="required").invoke(TEA).tool_calls[0]["args"]


def row_langchain_bind_tools_auto() -> object:
    return _langchain().bind_tools([order]).invoke(CALL).tool_calls[0]["args"]


def row_langchain_bind_tools_auto_stream() -> object:
    first, *others = _langchain().bind_tools([order]).stream(TEXT + CALL)
    whole = sum(others, first)
    return whole.content, whole.tool_calls[0]["args"]


def row_langchain_bind_tools_and_response_format() -> object:
    chat = _langchain().bind_tools([order], response_format=Order, strict=True)
    return chat.invoke(TEA).additional_kwargs["parsed"].model_dump(), chat.invoke(CALL).tool_calls[0]["args"]


def row_langchain_responses() -> object:
    return _langchain(use_responses_api=True).invoke(TEXT).text


def row_langchain_responses_stream() -> object:
    return "".join(chunk.text for chunk in _langchain(use_responses_api=True).stream(TEXT))


def row_langchain_responses_json_schema() -> object:
    return _langchain(use_responses_api=True).with_structured_output(Order).invoke(TEA)


def _agent(**more: Any) -> agents.Agent:
    agents.set_default_openai_client(ASYNC, use_for_tracing=False)
    return agents.Agent(name="tester", instructions="Repeat.", model=MODEL, **more)


async def row_agents_text() -> object:
    return (await agents.Runner.run(_agent(), TEXT)).final_output


async def row_agents_stream() -> object:
    result = agents.Runner.run_streamed(_agent(), TEXT)
    texts = [event.data.delta async for event in result.stream_events() if _is_text(event)]
    assert result.final_output == "".join(texts)
    return "".join(texts)


def _is_text(event: Any) -> bool:
    return event.type == "raw_response_event" and event.data.type == "response.output_text.delta"


async def row_agents_turns() -> object:
    first = await agents.Runner.run(_agent(), "one")
    given = [*first.to_input_list(), {"role": "user", "content": TEXT}]
    return (await agents.Runner.run(_agent(), given)).final_output


async def row_agents_output_type() -> object:
    return (await agents.Runner.run(_agent(output_type=Order), TEA)).final_output


async def row_agents_tool_required() -> object:
    settings = agents.ModelSettings(tool_choice="required")
    own = {"tools": [agents.function_tool(order)], "tool_use_behavior": "stop_on_first_tool"}
    return (await agents.Runner.run(_agent(model_settings=settings, **own), TEA)).final_output


async def row_agents_tool_auto_and_output_type() -> object:
    own = {"tools": [agents.function_tool(order)], "output_type": Order}
    return (await agents.Runner.run(_agent(**own), TEA)).final_output


async def row_agents_tool_auto() -> object:
    return (await agents.Runner.run(_agent(tools=[agents.function_tool(order)]), CALL)).final_output


async def row_pydantic_ai_text() -> object:
    return (await Agent(OpenAIChatModel(MODEL)).run(TEXT)).output


async def row_pydantic_ai_stream() -> object:
    async with Agent(OpenAIChatModel(MODEL)).run_stream(TEXT) as result:
        return "".join([text async for text in result.stream_text(delta=True)])


async def row_pydantic_ai_tool_output() -> object:
    return (await Agent(OpenAIChatModel(MODEL), output_type=Order).run(TEA)).output


async def row_pydantic_ai_native_output() -> object:
    return (await Agent(OpenAIChatModel(MODEL), output_type=NativeOutput(Order)).run(TEA)).output


async def row_pydantic_ai_responses() -> object:
    return (await Agent(OpenAIResponsesModel(MODEL)).run(TEXT)).output


async def row_pydantic_ai_responses_tool_output() -> object:
    return (await Agent(OpenAIResponsesModel(MODEL), output_type=Order).run(TEA)).output


async def row_pydantic_ai_function_auto_and_native_output() -> object:
    return (await Agent(OpenAIChatModel(MODEL), output_type=NativeOutput(Order), tools=[order]).run(TEA)).output


async def row_pydantic_ai_function_auto() -> object:
    return (await Agent(OpenAIChatModel(MODEL), tools=[order]).run(CALL)).output


def _instructor(mode: instructor.Mode) -> object:
    asking = instructor.from_openai(CLIENT, mode=mode)
    return asking.chat.completions.create(model=MODEL, messages=TEA_MESSAGES, response_model=Order, max_retries=0)


def row_instructor_tools() -> object:
    return _instructor(instructor.Mode.TOOLS)


def row_instructor_json_schema() -> object:
    return _instructor(instructor.Mode.JSON_SCHEMA)


def row_instructor_responses_tools() -> object:
    return _instructor(instructor.Mode.RESPONSES_TOOLS)


def row_litellm_chat() -> object:
    return litellm.completion(messages=MESSAGES, **LITELLM).choices[0].message.content


def row_litellm_stream() -> object:
    return _joined(litellm.completion(messages=MESSAGES, stream=True, **LITELLM))


def row_litellm_response_format() -> object:
    answer = litellm.completion(messages=TEA_MESSAGES, response_format=Order, **LITELLM)
    return json.loads(answer.choices[0].message.content)


def row_litellm_responses() -> object:
    return litellm.responses(input=TEXT, **LITELLM).output[0].content[0].text


def _joined(chunks: Iterable[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


async def row_mcp_call() -> object:
    async with mcp.Client(f"{URL}/mcp") as client:
        [tool] = (await client.list_tools()).tools
        assert tool.name == MODEL
        result = await client.call_tool(tool.name, {"prompt": TEXT})
        assert not result.is_error
        return result.structured_content["output"]


async def row_mcp_error() -> object:
    async with mcp.Client(f"{URL}/mcp") as client:
        result = await client.call_tool(MODEL, {"prompt": TEXT, "temperature": -1})
        assert result.is_error
        return result.content[0].text
