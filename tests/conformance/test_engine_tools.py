"""Every engine writes a text, calls of given tools, or both, as the caller chose; arguments match the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from gateway.openai.tool_calls import Function, call_schema
from serving.constraints import CallFormat, CallsConstraint, Constraint, JsonSchemaConstraint
from serving.engine import Engine
from serving.text import Tokenizer
from serving.text.call_format import DEFAULT_FORMAT
from serving.types import FinishReason, GenerationRequest
from tasks.bounds import schema_constraint
from tasks.chat.tool_calls import CallsReader, calls_constraint
from tests.conformance.asking import Answer, answer, answers, ask
from tests.conformance.kinds import Kind

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather_of_city": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "São Paulo"]}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"],
        "additionalProperties": False,
    },
    'look "up"': {
        "type": "object",
        "properties": {"words": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2}},
        "required": ["words"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": one}} for name, one in SCHEMAS.items()]
FUNCTIONS = [Function(name=name, parameters=one) for name, one in SCHEMAS.items()]
SAID = {
    "type": "object",
    "properties": {"said": {"type": "string", "maxLength": 8}},
    "required": ["said"],
    "additionalProperties": False,
}
# As Llama's template has it: nothing marks a call, and an answer has one at most.
UNMARKED = CallFormat("", '{"name": "', '", "parameters": ', "}", None)
ROOM = 100  # tokens of a prompt


def separated(schema: dict[str, Any]) -> JsonSchemaConstraint:
    return schema_constraint(schema, ", ", ": ")


def token_format(tokenizer: Tokenizer) -> CallFormat:
    """The default format with a control token as the mark, as Qwen and Mistral have one."""
    added = json.loads(tokenizer.to_json())["added_tokens"]
    words = [(one["content"], one["id"]) for one in added if one["special"]]
    word, token_id = next(((w, i) for w, i in words if i not in tokenizer.eos_token_ids), (None, None))
    if word is None:
        pytest.skip("the tokenizer has no control token but end tokens")
    shown = tokenizer.token_bytes(token_id).decode()
    closing, between = "}\n", f'}}\n{word}\n{{"name": "'
    return CallFormat(word, '\n{"name": "', '", "arguments": ', closing, between, tokens=((word, token_id, shown),))


def format_of(name: str, tokenizer: Tokenizer) -> CallFormat:
    return token_format(tokenizer) if name == "token" else {"tags": DEFAULT_FORMAT, "unmarked": UNMARKED}[name]


def asked(kind: Kind, constraint: Constraint, call_format: CallFormat, **sampling: object) -> GenerationRequest:
    """A request whose prompt has calls, as a model goes on with what it has read."""
    call = f"{call_format.marker}{call_format.opening}now{call_format.middle}{{}}{call_format.closing}\n"
    times = ROOM // len(kind.tokenizer.encode(call))
    return replace(ask(kind.tokenizer, call * times, max_tokens=150, **sampling), constraint=constraint)


def read(constraint: CallsConstraint, whole: Answer) -> tuple[str, list[dict[str, Any]]]:
    """The text of an answer that has ended, and its calls, read as they came."""
    reader = CallsReader(constraint)
    shown = "".join(reader.push(delta.text) for delta in whole.deltas) + reader.finish(whole.finish_reason)
    text, *lines = shown.split("<tool_call>")
    return text, [json.loads(line) for line in lines]


def check_calls(calls: Sequence[dict[str, Any]]) -> None:
    for call in calls:
        assert list(call) == ["name", "arguments"]
        jsonschema.validate(call["arguments"], SCHEMAS[call["name"]])


@pytest.mark.parametrize("is_single", [False, True], ids=["parallel", "single"])
@pytest.mark.parametrize("said", [None, SAID], ids=["text", "format"])
@pytest.mark.parametrize("name", ["tags", "token", "unmarked"])
async def test_the_model_chooses_between_text_and_calls(
    engine: Engine, kind: Kind, name: str, said: dict[str, Any] | None, is_single: bool
) -> None:
    call_format = format_of(name, kind.tokenizer)
    if said is not None and name == "unmarked":
        pytest.skip("a task takes another format where calls begin as JSON does")
    text = None if said is None else separated(said)
    constraint = calls_constraint(TOOLS, call_format, is_single=is_single, text=text)
    requests = [asked(kind, constraint, call_format)]
    temperature = 1.0 if said is None else 2.0
    requests += [asked(kind, constraint, call_format, temperature=temperature, seed=seed) for seed in range(11)]
    finished = [one for one in await answers(engine, requests) if one.finish_reason is FinishReason.STOP]
    written = [read(constraint, whole) for whole in finished]
    for shown, calls in written:
        check_calls(calls)
        assert not (is_single or name == "unmarked") or len(calls) <= 1
        if said is not None:
            assert bool(calls) != bool(shown)
            assert calls or jsonschema.validate(json.loads(shown), said) is None
    if kind.tokenizer.vocab_size > 1000:  # else a random model of bytes, which hardly writes what a call begins with
        assert finished, "no answer ended, so the test shows nothing"
        if name == "unmarked" or (name == "tags" and said is not None):
            assert any(calls for _, calls in written), "no answer has calls, so the test shows nothing"


async def chosen(engine: Engine, kind: Kind, constraint: Constraint) -> list[Answer]:
    requests = [asked(kind, constraint, UNMARKED)]
    requests += [asked(kind, constraint, UNMARKED, temperature=1.0, seed=seed) for seed in range(5)]
    finished = [one for one in await answers(engine, requests) if one.finish_reason is FinishReason.STOP]
    assert finished, "no answer ended, so the test shows nothing"
    return finished


async def test_of_required_tools_one_is_called(engine: Engine, kind: Kind) -> None:
    for whole in await chosen(engine, kind, separated(call_schema(FUNCTIONS))):
        check_calls([json.loads(whole.text)])


async def test_a_named_tool_gets_its_arguments(engine: Engine, kind: Kind) -> None:
    for function in FUNCTIONS:
        for whole in await chosen(engine, kind, separated(call_schema([function]))):
            check_calls([{"name": function.name, "arguments": json.loads(whole.text)}])


@pytest.mark.parametrize("name", ["tags", "token"])
async def test_what_a_call_must_have_is_drafted(engine: Engine, kind: Kind, name: str) -> None:
    """With one tool without choices, all but the choice to call it."""
    if engine.name not in ("paged", "vllm"):
        pytest.skip("drafts nothing")
    call_format = format_of(name, kind.tokenizer)
    own = {"type": "object", "properties": {"unit": {"const": "celsius"}}, "required": ["unit"]}
    tool = {"type": "function", "function": {"name": "temperature_of_city", "parameters": own}}
    impossible = separated({"const": "x" * 60})  # so that a call is likelier, and as much is forced
    constraint = calls_constraint([tool], call_format, is_single=True, text=impossible)
    whole = await answer(engine, asked(kind, constraint, call_format))
    assert whole.finish_reason is FinishReason.STOP
    shown, calls = read(constraint, whole)
    assert calls == [{"name": "temperature_of_city", "arguments": {"unit": "celsius"}}] or shown == json.dumps("x" * 60)
    prompt_passes = -(-whole.metrics.input_token_count // 64)
    assert whole.metrics.model_passes - prompt_passes < whole.metrics.output_token_count / 2
