"""Turns a request of OpenAI's API into the inputs of the package's predict, whatever package it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic_core
from pydantic import JsonValue

from gateway.errors import InvalidInputError
from gateway.openai.error_objects import ApiError
from gateway.openai.request_bodies import SAME_NAME, ChatBody, CompletionBody, SharedBody
from gateway.upstream.model_info import ModelInfo

_ONE_TEXT = "this model takes one text and no conversation; send one message with the role user and a text as content"
_SYSTEM = "system_prompt"  # the input that takes a system message


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Inputs of one prediction.

    Args:
        properties: the JSON Schemas of predict's inputs by name.
        values: the inputs by name.
        params: the request's parameter that each input came from, by the input's name.
        request: what the prediction keeps of the request, as in `Prediction`.
    """

    properties: Mapping[str, Any]
    values: dict[str, JsonValue] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    request: Mapping[str, JsonValue] | None = None

    def add(self, name: str, value: JsonValue, param: str, *, neutral: JsonValue = None) -> None:
        """Set an input, unless the value is None.

        Raises:
            ApiError: the model has no such input, and the value is not the one that changes nothing.
        """
        if value is None or (name not in self.properties and value == neutral):
            return
        if name not in self.properties:
            message = f"{param}: this model has no such setting; leave it out"
            raise ApiError(message, param=param, code="unsupported_parameter")
        self.values[name] = value
        self.params[name] = param

    def numbered(self, number: int) -> dict[str, JsonValue]:
        """The inputs of one of several answers; with a seed, each has a seed of its own."""
        seed = self.values.get("seed")
        return self.values | ({"seed": seed + number} if isinstance(seed, int) and number else {})

    def param_of(self, text: str) -> str | None:
        """The parameter that an error's text is about, such as `messages[0].content`; texts begin with an input."""
        match = re.match(r"([\w.\[\]]{1,100})(?: or (\w{1,60}))?[: ]", text)
        for place in match.groups(default="") if match else ():
            name = re.split(r"[.\[]", place)[0]
            if (param := self.params.get(name)) is not None:
                return place if param == name else param
        return None

    def explain(self, refusal: InvalidInputError) -> ApiError:
        """The server's refusal of an input, as an error of the parameter."""
        first = refusal.fields[0]
        name = (first.path[1] if len(first.path) > 1 else "").partition("/")[0]
        param = self.params.get(name)
        return ApiError(f"{param or '.'.join(first.path)}: {first.message}", param=param)


def chat_inputs(body: ChatBody, info: ModelInfo) -> ModelInputs:
    """The inputs for a conversation.

    Raises:
        ApiError: the model cannot do what the body asks.
    """
    inputs = ModelInputs(info.input_properties)
    if info.has_conversations:
        inputs.add("messages", [*body.messages], "messages")
    else:
        messages, takes_system = body.messages, _SYSTEM in inputs.properties
        if takes_system and len(messages) > 1 and messages[0].get("role") in ("system", "developer"):
            inputs.add(_SYSTEM, _text_of(messages[0]), "messages")
            messages = messages[1:]
        if [message.get("role") for message in messages] != ["user"]:
            also = "; a system message may stand before it" if takes_system else ""
            raise ApiError(f"messages: {_ONE_TEXT}{also}", param="messages")
        _add_texts(inputs, info, _text_of(messages[0]), "messages")
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    inputs.add("max_tokens", body.token_limit, param)
    if body.answer_format is not None:
        param, wanted = body.answer_format
        inputs.add("json_schema", wanted, param)
    if body.offered_tools:
        _add_tools(inputs, body)
    inputs.add("logprobs", body.num_logprobs, "logprobs")
    documents: JsonValue = None if body.documents is None else [*body.documents]
    inputs.add("documents", documents, "documents", neutral=[])
    inputs.add("chat_template_kwargs", body.chat_template_kwargs, "chat_template_kwargs", neutral={})
    inputs.add("add_generation_prompt", body.add_generation_prompt, "add_generation_prompt", neutral=True)
    return _with_shared(inputs, body)


def _add_tools(inputs: ModelInputs, body: ChatBody) -> None:
    """Let the model call the tools. A package without the second of these inputs shows calls in its model's own way."""
    if "tools" not in inputs.properties or "parallel_tool_calls" not in inputs.properties:
        raise ApiError(
            "tool_choice: 'auto', the default with tools, is not supported by this model's package; give 'required' or "
            "the function's name for a call, or 'none' for a text",
            param="tool_choice",
        )
    tools: list[JsonValue] = []
    for tool in body.offered_tools:
        function = tool.function.model_dump(exclude_none=True)
        if tool.function.parameters is not None:  # as text, because Cog's server sorts the keys of objects
            function["parameters"] = json.dumps(tool.function.parameters, ensure_ascii=False)
        tools.append({"type": "function", "function": function})
    inputs.add("tools", tools, "tools")
    inputs.add("parallel_tool_calls", body.parallel_tool_calls, "parallel_tool_calls")


def completion_inputs(body: CompletionBody, info: ModelInfo, prompt: str) -> ModelInputs:
    """The inputs for a prompt.

    Raises:
        ApiError: the model cannot do what the body asks.
    """
    inputs = ModelInputs(info.input_properties)
    if "prompt" in inputs.properties:
        inputs.add("prompt", prompt, "prompt")
    else:
        _add_texts(inputs, info, prompt, "prompt")
    inputs.add("max_tokens", body.max_tokens, "max_tokens")
    inputs.add("logprobs", body.logprobs, "logprobs")
    return _with_shared(inputs, body)


def _with_shared(inputs: ModelInputs, body: SharedBody) -> ModelInputs:
    for name, neutral in SAME_NAME.items():
        inputs.add(name, getattr(body, name), name, neutral=neutral)
    if body.stop_texts:
        inputs.add("stop_sequences", [*body.stop_texts], "stop")
    return inputs


def _add_texts(inputs: ModelInputs, info: ModelInfo, text: str, param: str) -> None:
    """Set the model's only text input to a text; where the model has several, the text is a JSON object of them."""
    names = [name for name in info.required_texts if name not in inputs.values]
    if not names:
        raise ApiError("this model has no text input that a conversation or a prompt could be", param=param)
    if len(names) == 1:
        inputs.add(names[0], text, param)
        return
    try:
        values = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError:
        values = None
    if not (
        isinstance(values, dict) and set(values) == set(names) and all(isinstance(v, str) for v in values.values())
    ):
        example = json.dumps(dict.fromkeys(names, "…"), ensure_ascii=False)
        raise ApiError(
            f"{param}: this model has the inputs {', '.join(names)}; send {example} as the text", param=param
        )
    for name, value in values.items():
        inputs.add(name, value, param)


def _text_of(message: Mapping[str, JsonValue]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        texts = [part for part in parts if isinstance(part, str)]
        content = "\n".join(texts) if len(texts) == len(content) else None
    if not isinstance(content, str):
        raise ApiError(f"messages: {_ONE_TEXT}", param="messages")
    return content
