"""Asks a gateway with LlamaIndex, whose packages are those of requirements/llama-index.txt; `ask.py` runs each row."""

from __future__ import annotations

import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel

BASE, MODEL = f"{sys.argv[1]}/v1", sys.argv[2]
TEXT = "one, two, three"
TEA = '{"item": "tea", "count": 2}'
CALL = f'<tool_call>\n{{"name": "order", "arguments": {TEA}}}\n</tool_call>'
OWN = {"model": MODEL, "api_base": BASE, "api_key": "any", "max_retries": 0, "temperature": 0, "is_chat_model": True}
LLM = OpenAILike(**OWN, is_function_calling_model=True)
JSON_LLM = OpenAILike(**OWN, is_function_calling_model=True, should_use_structured_outputs=True)
RESPONSES = OpenAILikeResponses(**OWN, is_function_calling_model=True)
AS_IT_IS = PromptTemplate("{text}")


class Order(BaseModel):
    item: str
    count: int


def order(item: str, count: int) -> str:
    """Order something."""
    return f"{count} x {item}"


TOOL = FunctionTool.from_defaults(order)


def row_llama_index_chat() -> object:
    return LLM.chat([ChatMessage("Repeat.", role="system"), ChatMessage(TEXT)]).message.content


def row_llama_index_complete() -> object:
    return LLM.complete(TEXT).text


def row_llama_index_complete_without_chat() -> object:
    return OpenAILike(**OWN | {"is_chat_model": False}).complete(TEXT).text


def row_llama_index_stream() -> object:
    return "".join(chunk.delta for chunk in LLM.stream_chat([ChatMessage(TEXT)]))


async def row_llama_index_async_stream() -> object:
    return "".join([chunk.delta async for chunk in await LLM.astream_chat([ChatMessage(TEXT)])])


def row_llama_index_structured_by_tool() -> object:
    return LLM.structured_predict(Order, AS_IT_IS, text=TEA)


def row_llama_index_structured_by_format() -> object:
    return JSON_LLM.structured_predict(Order, AS_IT_IS, text=TEA)


def row_llama_index_structured_stream() -> object:
    *_, last = LLM.stream_structured_predict(Order, AS_IT_IS, text=TEA)
    return last.model_dump()


def row_llama_index_tool_required() -> object:
    answer = LLM.chat_with_tools([TOOL], TEA, tool_required=True)
    return LLM.get_tool_calls_from_response(answer)[0].tool_kwargs


def row_llama_index_tool_auto() -> object:
    answer = LLM.chat_with_tools([TOOL], TEXT + CALL)
    return answer.message.content, LLM.get_tool_calls_from_response(answer)[0].tool_kwargs


def row_llama_index_tool_auto_stream() -> object:
    *_, last = LLM.stream_chat_with_tools([TOOL], TEXT + CALL)
    return last.message.content, LLM.get_tool_calls_from_response(last)[0].tool_kwargs


def row_llama_index_predict_and_call() -> object:
    return LLM.predict_and_call([TOOL], CALL).response


async def row_llama_index_agent() -> object:
    return str(await FunctionAgent(tools=[TOOL], llm=LLM).run(CALL))


def row_llama_index_responses() -> object:
    return RESPONSES.chat([ChatMessage(TEXT)]).message.content


def row_llama_index_responses_stream() -> object:
    return "".join(chunk.delta for chunk in RESPONSES.stream_chat([ChatMessage(TEXT)]))


def row_llama_index_responses_structured() -> object:
    return RESPONSES.structured_predict(Order, AS_IT_IS, text=TEA)


def row_llama_index_responses_tool_auto() -> object:
    answer = RESPONSES.chat_with_tools([TOOL], TEXT + CALL)
    return answer.message.content, RESPONSES.get_tool_calls_from_response(answer)[0].tool_kwargs


async def row_llama_index_responses_agent() -> object:
    return str(await FunctionAgent(tools=[TOOL], llm=RESPONSES).run(CALL))


def row_llama_index_openai_class() -> object:
    own = {"api_base": BASE, "api_key": "any", "max_retries": 0}
    return OpenAI(model=MODEL, **own).chat([ChatMessage(TEXT)]).message.content
