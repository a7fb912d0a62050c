"""The bodies of chat completions and completions, checked as far as that needs no model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from gateway.openai.tool_calls import (
    AnswerReader,
    ChosenCallsReader,
    ForcedCallReader,
    Function,
    TextReader,
    call_schema,
)

MAX_CHOICES: Final = 16  # answers to one request, each of which is a prediction
Count = Annotated[int, Field(ge=0, le=2**53)]
# Inputs of predict.py that have the same name in this API, with the value that changes nothing. Those that OpenAI's own
# API lacks are named as vLLM's.
SAME_NAME: Final[Mapping[str, JsonValue]] = {
    "temperature": None,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "min_tokens": 0,
    "seed": None,
    "adapter": None,  # this server's own: a fine-tune of the model
}


def only(*values: JsonValue) -> AfterValidator:
    """A validator that accepts null and these values, because any other would have to change the answer."""

    def check(value: JsonValue) -> JsonValue:
        if value is not None and not any(type(value) is type(one) and value == one for one in values):
            allowed = " or ".join(map(repr, values))
            raise ValueError(
                "is not supported by this server; leave it out" + (f" or give {allowed}" if values else "")
            )
        return value

    return AfterValidator(check)


class Part(BaseModel):
    """An object within a body."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StreamOptions(Part):
    """Options of a stream; `include_usage` adds a last chunk with the counts of tokens."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[JsonValue, only(False)] = None
    continuous_usage_stats: Annotated[JsonValue, only(False)] = None


class CommonBody(BaseModel):
    """The parameters that all kinds of requests have. Unknown ones are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: Count | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: Count | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)
    adapter: str | None = None
    stream: bool | None = None

    # These never change an answer.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    service_tier: Annotated[JsonValue, only("auto", "default")] = None


class SharedBody(CommonBody):
    """The parameters that chat completions and completions share."""

    max_tokens: int | None = Field(None, ge=1, le=2**53)
    stop: str | list[str] | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream_options: StreamOptions | None = None

    logit_bias: Annotated[JsonValue, only({})] = None
    metadata: Annotated[JsonValue, only({})] = None
    store: Annotated[JsonValue, only(False)] = None

    def faults(self) -> dict[str, str]:
        """What is wrong between parameters, by parameter. A validator could not name the parameter."""
        if self.stream_options is not None and not self.stream:
            return {"stream_options": "needs stream to be true"}
        return {}

    @property
    def stop_texts(self) -> list[str]:
        """The texts that end the answer; each may hold commas."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class JsonSchemaFormat(Part):
    """The schema of an answer with its name; only the schema counts."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, JsonValue] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Part):
    """What kind of text the answer is."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is given with the type json_schema, and only with it")
        return self


class Tool(Part):
    """A tool; all of them are functions."""

    type: Literal["function"]
    function: Function


class FunctionName(Part):
    """The name of the function that a `ToolChoice` asks for."""

    name: str


class ToolChoice(Part):
    """The function that the model must call."""

    type: Literal["function"]
    function: FunctionName


class ChatBody(SharedBody):
    """The body of POST /v1/chat/completions."""

    messages: list[dict[str, JsonValue]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, le=2**53)
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None  # a forced tool is called once, which both values allow

    # Inputs of chat packages that OpenAI's API lacks.
    documents: list[dict[str, JsonValue]] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    add_generation_prompt: bool | None = None

    audio: Annotated[JsonValue, only()] = None
    function_call: Annotated[JsonValue, only("none")] = None
    functions: Annotated[JsonValue, only([])] = None
    modalities: Annotated[JsonValue, only(["text"])] = None
    prediction: Annotated[JsonValue, only()] = None
    reasoning_effort: Annotated[JsonValue, only("none")] = None
    verbosity: Annotated[JsonValue, only("medium")] = None
    web_search_options: Annotated[JsonValue, only()] = None

    @property
    def token_limit(self) -> int | None:
        """The largest number of tokens of the answer; of the two parameters for it, the newer one counts."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """The number of likeliest tokens that are wanted for each token; None for no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def forced_functions(self) -> list[Function]:
        """The functions of which one must be called; none where the answer is a text."""
        functions = [tool.function for tool in self.tools or []]
        match self.tool_choice:
            case ToolChoice(function=FunctionName(name=name)):
                return [function for function in functions if function.name == name]
            case "required":
                return functions
            case _:
                return []

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the model may call or not; none where it must or must not."""
        return list(self.tools or []) if self.tool_choice in (None, "auto") else []

    def reader(self) -> AnswerReader:
        """A new reader of an answer to this request."""
        if functions := self.forced_functions:
            return ForcedCallReader(functions)
        return ChosenCallsReader(is_json=self.answer_format is not None) if self.offered_tools else TextReader()

    @property
    def answer_format(self) -> tuple[str, dict[str, JsonValue]] | None:
        """The parameter that asks for JSON, and the format in OpenAI's words; None for free text."""
        functions, wanted = self.forced_functions, self.response_format
        if functions:
            return "tools", _schema_format(call_schema(functions))
        if wanted is None or wanted.type == "text":
            return None
        if wanted.json_schema is None:
            return "response_format", {"type": "json_object"}
        return "response_format", _schema_format(wanted.json_schema.schema_)

    def faults(self) -> dict[str, str]:
        """See `SharedBody.faults`."""
        found = super().faults()
        if self.top_logprobs is not None and not self.logprobs:
            found["top_logprobs"] = "needs logprobs to be true"
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            found["max_completion_tokens"] = f"differs from max_tokens, which is {self.max_tokens}; give one of them"
        names = [tool.function.name for tool in self.tools or []]
        if twice := next((name for name in names if names.count(name) > 1), None):
            found["tools"] = f"{json.dumps(twice)[:80]} is the name of two functions; each needs its own"
        elif fault := self._fault_of_choice(names):
            found["tool_choice"] = fault
        elif self.forced_functions and self.response_format and self.response_format.type != "text":
            found["response_format"] = "cannot be given together with a function that must be called"
        return found

    def _fault_of_choice(self, names: list[str]) -> str | None:
        match self.tool_choice:
            case ToolChoice(function=FunctionName(name=name)) if name not in names:
                return f"{json.dumps(name)[:80]} is not one of the tools"
            case "required" if not names:
                return "'required' needs tools"
            case _:
                return None


def _schema_format(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """A schema in a wrapper, which says that what is inside is a schema, whatever keys it has.

    The schema is text, because Cog's server sorts the keys of objects and the answer has the order of the schema.
    """
    text = json.dumps(schema, ensure_ascii=False)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": text}}


class CompletionBody(SharedBody):
    """The body of POST /v1/completions."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: Annotated[JsonValue, only(1)] = None
    echo: Annotated[JsonValue, only(False)] = None
    suffix: Annotated[JsonValue, only("")] = None

    @property
    def prompts(self) -> list[str]:
        """The texts that are continued, each of which gets `n` answers."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def faults(self) -> dict[str, str]:
        """See `SharedBody.faults`."""
        total = len(self.prompts) * (self.n or 1)
        return super().faults() | (
            {"n": f"makes {total} answers to all prompts; the limit is {MAX_CHOICES}"} if total > MAX_CHOICES else {}
        )
