"""The body of POST /v1/responses, checked as far as that needs no model, and as the body of a chat completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from gateway.openai.error_objects import ApiError
from gateway.openai.request_bodies import SAME_NAME, ChatBody, CommonBody, Part, only

LOGPROBS: Final = "message.output_text.logprobs"
# What this API calls the parameters of chat completions.
_NAMES: Final = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "logprobs": "include",
}
Metadata = Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)]


def _as_items(value: object) -> object:
    """The items of an input; a text is the user's message."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class TextFormat(Part):
    """What kind of text the answer is."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, JsonValue] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError("schema is given with the type json_schema, and only with it")
        return self

    @property
    def response_format(self) -> dict[str, JsonValue]:
        """The same in a chat completion's words."""
        if self.schema_ is None:
            return {"type": self.type}
        return {"type": self.type, "json_schema": {"name": self.name, "schema": self.schema_}}


class TextOptions(Part):
    """How the answer's text is."""

    format: TextFormat | None = None
    verbosity: Annotated[JsonValue, only("medium")] = None


class FunctionTool(Part):
    """A tool; all of them are functions."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class NamedFunction(Part):
    """The function that the model must call."""

    type: Literal["function"]
    name: str


class Reasoning(Part):
    """What the model thinks before it answers, which here is nothing, so there is no summary of it either."""

    effort: Annotated[JsonValue, only("none")] = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(Part):
    """Options of a stream."""

    include_obfuscation: Annotated[JsonValue, only(False)] = None


class ResponsesBody(CommonBody):
    """The body of POST /v1/responses."""

    input: Annotated[list[dict[str, JsonValue]], BeforeValidator(_as_items), Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=2**53)
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    store: bool | None = None
    background: bool | None = None
    metadata: Metadata | None = None
    stream_options: ResponseStreamOptions | None = None
    reasoning: Reasoning | None = None
    prompt_cache_retention: str | None = None  # never changes an answer

    context_management: Annotated[JsonValue, only()] = None
    conversation: Annotated[JsonValue, only()] = None
    max_tool_calls: Annotated[JsonValue, only()] = None
    moderation: Annotated[JsonValue, only()] = None
    prompt: Annotated[JsonValue, only()] = None
    prompt_cache_options: Annotated[JsonValue, only()] = None
    truncation: Annotated[JsonValue, only("disabled")] = None

    @property
    def is_stored(self) -> bool:
        """Whether the response can be read later and continued; as in OpenAI's API, that is the default."""
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer has log probabilities."""
        return LOGPROBS in (self.include or [])

    @property
    def kept(self) -> dict[str, JsonValue]:
        """The parameters that a stored response shows again; `input` is kept as items (`items.py`)."""
        return self.model_dump(by_alias=True, exclude_none=True, exclude={"input"})

    def faults(self) -> dict[str, str]:
        """What is wrong between parameters, by parameter, besides what a chat completion's body finds."""
        if self.background and not self.is_stored:
            return {"background": "needs store to be true, because its answer is read later"}
        if self.top_logprobs is not None and not self.wants_logprobs:
            return {"top_logprobs": f"needs include to have {LOGPROBS}"}
        if self.stream_options is not None and not self.stream:
            return {"stream_options": "needs stream to be true"}
        return {}

    def chat_body(self, messages: Sequence[Mapping[str, JsonValue]]) -> ChatBody:
        """The same request as a chat completion's."""
        choice: JsonValue = None
        if isinstance(self.tool_choice, NamedFunction):
            choice = {"type": "function", "function": {"name": self.tool_choice.name}}
        else:
            choice = self.tool_choice
        functions = [tool.model_dump(exclude={"type"}, exclude_none=True) for tool in self.tools or []]
        must_call = choice not in (None, "none", "auto")  # then there is no text that could have a format
        wanted = None if must_call or self.text is None else self.text.format
        values: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "max_completion_tokens": self.max_output_tokens,
            "response_format": wanted and wanted.response_format,
            "tools": [{"type": "function", "function": function} for function in functions] or None,
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "logprobs": self.wants_logprobs,
            "top_logprobs": self.top_logprobs,
            **{name: getattr(self, name) for name in SAME_NAME},
        }
        return ChatBody.model_validate(values)


def param_name(param: str) -> str:
    """What this API calls a parameter of chat completions; a place in a message is `input`, whose items are others."""
    return _NAMES.get(param.partition("[")[0].partition(".")[0], param)


def renamed(error: ApiError) -> ApiError:
    """An error of a chat completion, with this API's name of the parameter."""
    if error.param is None or (name := param_name(error.param)) == error.param:
        return error
    text = error.detail.removeprefix(f"{error.param}: ")
    if text != error.detail:
        text = f"{name}: {text}"
    return ApiError(text, param=name, code=error.code, status=error.status, retry_after=error.retry_after)
