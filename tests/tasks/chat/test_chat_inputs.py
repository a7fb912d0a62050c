"""The inputs of a chat model have the names and types of hosted language models, and every mistake is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from serving.grammar import compile_constraint
from serving.types import SamplingParams
from tasks.bounds import schema_constraint
from tasks.chat.inputs import ChatInputs, read_answer_schema, read_stop_sequences
from tasks.chat.options import Defaults
from tasks.errors import InputError

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}
MESSAGES = [{"role": "user", "content": "Hi"}]
DEEP = "[" * 20_000 + "]" * 20_000


def sampling(**inputs) -> SamplingParams:
    return ChatInputs.read({"prompt": "Hi", **inputs}).sampling(Defaults())


def test_missing_and_null_inputs_have_the_default():
    assert sampling() == SamplingParams(max_tokens=512, temperature=0.6, top_p=0.9, top_k=50)
    given = ChatInputs.read({"prompt": "Hi", "messages": [], "seed": None, "temperature": None, "stop_sequences": ""})
    defaults = Defaults(temperature=0.1, top_k=3, stop_sequences=("\n",), max_tokens=7)
    expected = SamplingParams(max_tokens=7, temperature=0.1, top_p=0.9, top_k=3, stop=("\n",))
    assert given.sampling(defaults) == expected


def test_every_sampling_input_is_passed_on():
    chosen = {
        "max_tokens": 9, "min_tokens": 2, "temperature": 1.5, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "seed": 7,
        "repetition_penalty": 1.1, "presence_penalty": -1.0, "frequency_penalty": 2.0,
    }  # fmt: skip
    assert sampling(**chosen, stop_sequences=["a, b"]) == SamplingParams(**chosen, stop=("a, b",))


def test_zero_is_a_value():
    """A seed of 0 is a seed, a temperature of 0 is greedy, and a top_k of 0 keeps all tokens."""
    chosen = sampling(seed=0, temperature=0, top_k=0)
    assert (chosen.seed, chosen.temperature, chosen.top_k) == (0, 0.0, None)


def test_an_integer_may_be_passed_as_a_float():
    """JSON Schema takes 1.0 for an integer, and Cog passes it on as a float."""
    max_tokens = sampling(max_tokens=12.0).max_tokens
    assert max_tokens == 12
    assert isinstance(max_tokens, int)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "prompt or messages: both are empty; give one of the two"),
        ({"prompt": "", "messages": []}, "prompt or messages: both are empty"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt or messages: both are given; give one of the two"),
        ({"prompt": "a", "max_new_tokens": 5}, "max_new_tokens: there is no such input; there are prompt, messages,"),
        ({"prompt": 5}, "prompt: 5 does not fit; input should be a valid string"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens: 1.5 does not fit; input should be a valid integer"),
        ({"prompt": "a", "temperature": "hot"}, 'temperature: "hot" does not fit; input should be a valid number'),
        ({"messages": ["Hi"]}, 'messages: "Hi" at 0 does not fit; input should be a valid dictionary'),
        ({"messages": "Hi"}, 'messages: "Hi" does not fit; input should be a valid list'),
        ({"prompt": "a", "stop_sequences": [1]}, "stop_sequences: 1 at 0 does not fit"),
    ],
)
def test_an_invalid_input_is_named(inputs, message):
    with pytest.raises(InputError) as caught:
        ChatInputs.read(inputs)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("###", ("###",)),
        ("a,b", ("a", "b")),
        (" a, b", (" a", " b")),
        (r"a\,b,c", ("a,b", "c")),
        (r"\,", (",",)),
        (r"a,\,\,,b", ("a", ",,", "b")),
        ("\\n", ("\\n",)),
        ('["a,b", "\\n"]', ("a,b", "\n")),
        ("[end", ("[end",)),
        ("[1]", ("[1]",)),
        (("a,b", "["), ("a,b", "[")),
    ],
)
def test_stop_sequences_may_hold_a_comma(stop, expected):
    assert read_stop_sequences(stop) == expected


@given(st.lists(st.text(alphabet="ab, \n[]\"'", min_size=1), min_size=1))
def test_any_texts_can_be_passed_in_each_form(texts):
    assert read_stop_sequences(tuple(texts)) == tuple(texts)
    assert read_stop_sequences(json.dumps(texts)) == tuple(texts)
    joined = ",".join(text.replace(",", r"\,") for text in texts)
    if not joined.startswith("["):
        assert read_stop_sequences(joined) == tuple(texts)


@pytest.mark.parametrize("stop", ["a,,b", ",", "a,", ("a", ""), '[""]'])
def test_an_empty_stop_sequence_is_refused(stop):
    with pytest.raises(InputError, match=r"stop_sequences: one is empty and .* write a comma as \\,"):
        sampling(stop_sequences=stop)


@pytest.mark.parametrize(
    "value",
    [
        SCHEMA,
        json.dumps(SCHEMA),
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        json.dumps({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}),
        {"type": "json_schema", "json_schema": {"name": "x", "schema": json.dumps(SCHEMA)}},
        {"name": "x", "schema": SCHEMA},
        {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True},
        {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    ],
)
def test_a_schema_is_found_in_each_of_its_wrappers(value):
    """A grammar compiled from a wrapper would allow any JSON, without an error."""
    schema = read_answer_schema(ChatInputs.read({"prompt": "a", "json_schema": value}).json_schema)
    assert schema == SCHEMA
    assert list(schema["properties"]) == ["b", "a"], "the order in which the model writes them"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        (True, True),
        ({}, {}),
        ({"description": "anything"}, {"description": "anything"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"properties": {"schema": {}}, "title": "a", "additionalProperties": True}, ...),
    ],
)
def test_a_schema_that_is_not_wrapped_is_not_changed(value, expected):
    assert read_answer_schema(value) == (value if expected is ... else expected)


@pytest.mark.parametrize(
    "value",
    [{"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "x"}}, "[]", {"name": "x", "schema": 3}],
)
def test_a_wrapper_without_a_schema_is_refused(value):
    with pytest.raises(InputError, match=r"json_schema: .* contains no schema; send a JSON Schema, or"):
        read_answer_schema(value)


def test_a_schema_that_is_not_json_is_refused():
    with pytest.raises(InputError, match="json_schema: is not JSON: Expecting"):
        read_answer_schema("{type: object}")


@pytest.mark.parametrize("value", [DEEP, {"name": "x", "schema": DEEP}], ids=["schema", "wrapped"])
def test_a_schema_that_is_nested_too_deeply_is_refused(value):
    with pytest.raises(InputError, match="json_schema: is not JSON: nested too deeply"):
        read_answer_schema(value)


def test_a_stop_text_of_many_brackets_is_not_json():
    assert read_stop_sequences(DEEP) == (DEEP,)


def test_an_object_has_properties_that_its_schema_does_not_mention_only_where_it_asks_for_them():
    def matcher(**more: Any) -> LLMatcher:
        person = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], **more}
        schema = read_answer_schema({"type": "json_schema", "json_schema": {"name": "x", "schema": person}})
        return compile_constraint(schema_constraint(schema, ", ", ": "), LLTokenizer("byte"))

    answer = list(b'{"name": "Ada", "gender": "female"}')
    assert matcher().try_consume_tokens(answer) == len(b'{"name": "Ada"')
    assert matcher(additionalProperties=True).try_consume_tokens(answer) == len(answer)
    assert matcher(patternProperties={"^g": {"type": "string"}}).try_consume_tokens(answer) == len(answer)


@pytest.mark.parametrize("required", [[{}], [3], "name", None])
def test_a_malformed_list_of_required_properties_is_left_to_the_compiler(required):
    schema = {"type": "object", "properties": {"name": {}}, "required": required}
    assert json.loads(schema_constraint(schema, ", ", ": ").schema)["required"] == required
