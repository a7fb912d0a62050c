"""The inputs of a chat model, with the names that hosted language models use, and the forms of its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from serving.types import SamplingParams
from tasks.chat.options import Defaults
from tasks.errors import InputError
from tasks.json_text import parse_json

_BESIDE_SCHEMA: Final = {"type", "name", "strict", "description"}
_HINT: Final = 'send a JSON Schema, or {"type": "json_schema", "json_schema": {"name": "…", "schema": {…}}}'


def read_answer_schema(value: dict[str, Any] | bool | str | None) -> dict[str, Any] | bool | None:
    """The schema of the answer; None for free text.

    Args:
        value: a schema, or one of OpenAI's wrappers around it: `response_format`, its `json_schema`, or `text.format`;
            also as JSON text. The wrapper must be removed: as a schema it would allow any JSON. The schema inside a
            wrapper may be JSON text too, which keeps the order of its properties: Cog's server sorts those of objects.

    Raises:
        InputError: the value has none of these forms.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = _parse(value)
    match value:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": schema}} | {"format": {"schema": schema}}:
            pass
        case {"schema": schema, **others} if others.keys() <= _BESIDE_SCHEMA:
            pass
        case _:
            schema = value
    if isinstance(schema, str):
        schema = _parse(schema)
    if not isinstance(schema, dict | bool) or (isinstance(schema, dict) and schema.get("type") == "json_schema"):
        raise InputError("json_schema", f"{json.dumps(value)[:80]} contains no schema", _HINT)
    return schema


def _parse(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError("json_schema", f"is not JSON: {error}", _HINT) from error


Objects = list[dict[str, Any]]


class ChatInputs(BaseModel):
    """The inputs of one call. None and an empty text or list mean that an input is omitted; 0 is a value.

    Args:
        prompt: the user's message, instead of `messages`.
        messages: a conversation: objects with `role` and `content`, as in OpenAI's API.
        system_prompt: the system message, before the conversation.
        tools: functions that the model may call, as in OpenAI's API.
        parallel_tool_calls: whether it may call several in one answer.
        documents: texts for the template, objects such as `{"title": "…", "text": "…"}`.
        chat_template_kwargs: more variables for the template.
        add_generation_prompt: whether the prompt ends with the start of the model's answer.
        json_schema: a JSON Schema that the answer follows, or OpenAI's `response_format`; with `tools`, an answer
            without calls.
        max_tokens: maximum tokens of the answer.
        min_tokens: minimum tokens of the answer.
        temperature: 0 always takes the likeliest token.
        top_p: total probability of the tokens to sample from (nucleus).
        top_k: number of tokens to sample from; 0 keeps all.
        min_p: minimum probability of a token, relative to the likeliest one's.
        repetition_penalty: the penalty for tokens of prompt and answer; 1 changes nothing.
        presence_penalty: the penalty for tokens that occur in the answer.
        frequency_penalty: the penalty for tokens of the answer, once per occurrence.
        stop_sequences: texts that end the answer and are not part of it; see `read_stop_sequences`.
        seed: makes the answer repeatable; 0 is a seed.
        logprobs: gives the log probability of each token, and of so many of the likeliest ones, as a metric.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str | None = None
    messages: Objects = []
    system_prompt: str | None = None
    tools: Objects = []
    parallel_tool_calls: bool = True
    documents: Objects = []
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    json_schema: dict[str, Any] | bool | str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop_sequences: list[str] | str | None = None
    seed: int | None = None
    logprobs: int | None = None

    @classmethod
    def read(cls, inputs: Mapping[str, Any]) -> Self:
        """Check names and types, and that there is a prompt or a message.

        Raises:
            InputError: for the first wrong input.
        """
        try:
            given = cls.model_validate({name: value for name, value in inputs.items() if value is not None})
        except ValidationError as error:
            raise _explain(error) from error
        if bool(given.prompt) == bool(given.messages):
            problem = "both are given" if given.prompt else "both are empty"
            raise InputError("prompt or messages", problem, "give one of the two")
        return given

    def sampling(self, defaults: Defaults) -> SamplingParams:
        """How tokens are chosen. The engine checks the limits.

        Raises:
            InputError: the stop sequences cannot be read.
        """

        def value(name: str) -> Any:
            own = getattr(self, name)
            return getattr(defaults, name) if own is None else own

        stop = self.stop_sequences
        return SamplingParams(
            max_tokens=value("max_tokens"),
            min_tokens=value("min_tokens"),
            temperature=value("temperature"),
            top_p=value("top_p"),
            top_k=value("top_k") or None,
            min_p=value("min_p"),
            repetition_penalty=value("repetition_penalty"),
            presence_penalty=value("presence_penalty"),
            frequency_penalty=value("frequency_penalty"),
            seed=self.seed,
            stop=read_stop_sequences(stop) if stop else defaults.stop_sequences,
            logprobs=self.logprobs,
        )


def read_stop_sequences(stop: Sequence[str]) -> tuple[str, ...]:
    r"""The texts that end an answer.

    Args:
        stop: a list, or a text: either a JSON list, or texts separated by commas, in which `\,` is a comma.

    Raises:
        InputError: one of them is empty.
    """
    texts = _split(stop) if isinstance(stop, str) else tuple(stop)
    if "" in texts:
        raise InputError("stop_sequences", "one is empty and would end every answer", r"remove it; write a comma as \,")
    return texts


def _split(text: str) -> tuple[str, ...]:
    if text.startswith("["):
        try:
            found = parse_json(text)
        except ValueError:
            found = None
        if isinstance(found, list) and all(isinstance(item, str) for item in found):
            return tuple(found)
    pieces = [piece.split(",") for piece in text.split(r"\,")]
    texts = pieces[0]
    for piece in pieces[1:]:
        texts = [*texts[:-1], f"{texts[-1]},{piece[0]}", *piece[1:]]
    return tuple(texts)


def _explain(error: ValidationError) -> InputError:
    first = error.errors()[0]
    name, *inside = first["loc"]
    if first["type"] == "extra_forbidden":
        return InputError(str(name), "there is no such input", f"there are {', '.join(ChatInputs.model_fields)}")
    place = next((f" at {index}" for index in inside if isinstance(index, int)), "")
    value = json.dumps(first["input"], ensure_ascii=False, default=str)
    return InputError(str(name), f"{value[:60]}{place} does not fit", first["msg"][:1].lower() + first["msg"][1:])
