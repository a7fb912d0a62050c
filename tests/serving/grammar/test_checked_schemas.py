"""Schemas that llguidance does not compile as they are: what is allowed is what the schema allows."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.constraints import JsonSchemaConstraint
from serving.errors import GrammarError
from serving.grammar import answer_checks
from serving.grammar.answer_checks import AnswerChecks
from serving.grammar.compiler import GrammarCompiler
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
COMPILER = GrammarCompiler(TOKENIZER, vocab_size=TOKENIZER.vocab_size)


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
EVEN = {"properties": {"n": {"multipleOf": 2}}, "required": ["n"]}
NESTED = {"type": "array", "items": {"$ref": "#/$defs/list"}, "uniqueItems": True}
COLOURS = {"enum": ["red", "green", "blue"]}
KIND = closed(kind={"const": "a"}, size=NUMBER) | {"required": ["kind"]}
OTHER = closed(kind={"enum": ["b", "c"]}, size=TEXT) | {"required": ["kind"]}
# name → schema, allowed values, refused values
EXACT: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "oneOf of constants": (
        {"oneOf": [KIND, OTHER], "not": {"required": ["none"]}},
        [{"kind": "a", "size": 1}, {"kind": "c", "size": "x"}, {"kind": "b"}],
        [{"kind": "a", "size": "x"}, {"kind": "d"}, {}],
    ),
    "oneOf of required keys": (
        {
            "oneOf": [closed(a=TEXT) | {"required": ["a"]}, closed(b=TEXT) | {"required": ["b"]}],
            "not": {"type": "null"},
        },
        [{"a": "x"}, {"b": "x"}],
        [{}, {"a": "x", "b": "x"}, None],
    ),
    "not of types": ({"not": {"type": ["object", "array", "null"]}}, ["x", 1, True], [{}, [], None]),
    "not of keys": (
        closed(a=NUMBER, b=NUMBER) | {"not": {"required": ["a", "b"]}},
        [{}, {"a": 1}, {"b": 1}],
        [{"a": 1, "b": 2}],
    ),
    "not of an enum": ({"enum": ["a", "b", 1], "not": {"enum": ["b", 1.0]}}, ["a"], ["b", 1]),
    "not of bounds": ({"type": "number", "not": {"minimum": 3}}, [2, 2.5], [3, 4]),
    "forbidden key": (closed(a=NUMBER, b={"not": {}}), [{"a": 1}, {}], [{"a": 1, "b": 1}]),
    "condition": (
        closed(k=COLOURS, n=NUMBER)
        | {"required": ["k"], "if": {"not": {"required": ["n"]}}, "then": {"properties": {"k": {"const": "red"}}}},
        [{"k": "red"}, {"k": "blue", "n": 1}],
        [{"k": "blue"}],
    ),
    "dependentRequired": (
        closed(a=NUMBER, b=NUMBER, c=NUMBER) | {"dependentRequired": {"a": ["c"]}},
        [{"b": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
        [{"a": 1}, {"a": 1, "b": 1}],
    ),
    "dependencies": (
        closed(a=NUMBER, b=NUMBER) | {"dependencies": {"a": {"properties": {"b": {"minimum": 3}}}}},
        [{"b": 1}, {"a": 1, "b": 3}, {"a": 1}],
        [{"a": 1, "b": 1}],
    ),
    "names in a pattern": (
        {"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "additionalProperties": NUMBER},
        [{"a": 1, "c": 2}, {}],
        [{"d": 1}, {"a": "x"}],
    ),
    "names in a list": (
        {"type": "object", "propertyNames": COLOURS, "additionalProperties": NUMBER},
        [{"blue": 1, "red": 2}],
        [{"reds": 1}],
    ),
    "unique colours": (
        {"type": "array", "items": COLOURS, "uniqueItems": True},
        [[], ["red"], ["blue", "red", "green"]],
        [["red", "red"], ["red", "blue", "red"]],
    ),
    "one property at least": (closed(a=NUMBER, b=NUMBER) | {"minProperties": 1}, [{"a": 1}, {"b": 1}], [{}]),
    "unknown format": ({"type": "string", "format": "color"}, ["red"], [1]),
    "format by a pattern": ({"type": "string", "format": "uri-reference"}, ["a/b?c#d", "#x"], ["a b", "<"]),
}
CHECKED: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "oneOf that may overlap": (
        {"properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}, {}],
    ),
    "oneOf of numbers": ({"oneOf": [{"type": "integer"}, {"minimum": 2}], "type": "number"}, [1, 2.5], [3, 0.5]),
    "not of a pattern": ({"type": "string", "not": {"pattern": "^a"}}, ["b", "ba"], ["a", "ab"]),
    "not of a text": ({"type": "string", "not": {"enum": ["no", "never"]}}, ["yes", "nob"], ["no", "never"]),
    "lookahead": ({"type": "string", "pattern": "^(?!no$)[a-z]+$"}, ["yes", "nob"], ["no", "X"]),
    "unique numbers": (
        {"type": "array", "items": NUMBER, "uniqueItems": True},
        [[1, 2], [12, 1]],
        [[1, 1], [1, 2, 1]],
    ),
    "contains": ({"type": "array", "items": NUMBER, "contains": {"minimum": 5}}, [[1, 6]], [[1, 2], []]),
    "most properties": (
        {"type": "object", "properties": {"a": NUMBER}, "maxProperties": 2},
        [{"a": 1, "b": 1}, {"x": 1}],
        [{"a": 1, "b": 1, "c": 1}],
    ),
    "names that are not": (
        {"type": "object", "propertyNames": {"not": {"enum": ["id"]}}, "additionalProperties": NUMBER},
        [{"ids": 1}],
        [{"id": 1}, {"a": 1, "id": 2}],
    ),
    "condition on a number": (
        closed(n=NUMBER, m=NUMBER) | {"if": EVEN, "then": {"required": ["m"]}},
        [{"n": 1}, {"n": 2, "m": 1}],
        [{"n": 2}],
    ),
    "deep": (
        closed(rows={"type": "array", "items": closed(tags={"type": "array", "items": TEXT, "uniqueItems": True})}),
        [{"rows": [{"tags": ["a", "b"]}, {"tags": ["a"]}]}],
        [{"rows": [{"tags": ["a"]}, {"tags": ["a", "a"]}]}],
    ),
    "through references": (
        {"$ref": "#/$defs/list", "$defs": {"list": {"anyOf": [NUMBER, NESTED]}}},
        [[1, [1]], 3],
        [[[1, 1]], [[1], [1]]],
    ),
}  # fmt: skip
ALL = {**EXACT, **CHECKED}


def constraint(schema: Any) -> JsonSchemaConstraint:
    return JsonSchemaConstraint(json.dumps(schema))


def is_written(schema: Any, value: Any) -> bool:
    """Whether each byte of a value is accepted, one after the other, and the answer may end."""
    state = COMPILER.compile(constraint(schema))
    try:
        for token in [token for char in json.dumps(value) for token in TOKENIZER.encode(char, add_bos=False)]:
            if state.accept([token]) != 1:
                return False
    except GrammarError as error:
        assert "could not be met" in str(error)
        return False
    return state.may_end


@pytest.mark.parametrize("name", ALL)
def test_what_is_allowed_is_written_and_nothing_else(name: str) -> None:
    schema, allowed, refused = ALL[name]
    validator = jsonschema.Draft201909Validator if "dependencies" in schema else jsonschema.Draft202012Validator
    for value in allowed:
        assert "dependencies" in schema or validator(schema).is_valid(value), value
        assert is_written(schema, value), value
    for value in refused:
        assert not is_written(schema, value), value


@pytest.mark.parametrize("name", ALL)
def test_what_a_grammar_can_say_is_not_checked_besides(name: str) -> None:
    assert (answer_checks(constraint(ALL[name][0])) is None) == (name in EXACT)


@pytest.mark.parametrize("name", CHECKED)
def test_a_whole_answer_is_checked_alike(name: str) -> None:
    schema, allowed, _ = CHECKED[name]
    checks = answer_checks(constraint(schema))
    assert checks is not None
    assert [checks.first_error(value) for value in allowed] == [None] * len(allowed)


def test_tokens_can_be_taken_back_and_drafts_change_nothing() -> None:
    state = COMPILER.compile(constraint(CHECKED["unique numbers"][0]))
    ids = TOKENIZER.encode("[1, 1", add_bos=False)
    end, comma, digit = (TOKENIZER.encode(text, add_bos=False)[0] for text in "],2")
    assert state.accept([*ids, end]) == len(ids)
    assert state.accept([comma]) == 0
    assert state.accept([digit, end]) == 2
    assert state.is_complete
    state.rollback(2)
    assert state.accept([end]) == 0
    state.rollback(1)
    assert state.accept([digit, end]) == 2


def test_a_dead_end_names_the_keyword() -> None:
    schema = closed(n={"const": 2}) | {"required": ["n"], "not": {"properties": {"n": {"multipleOf": 2}}}}
    state = COMPILER.compile(constraint(schema))
    mask = np.zeros(-(-TOKENIZER.vocab_size // 32), np.int32)
    state.fill_bitmask(mask)
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    with pytest.raises(GrammarError, match="#/not could not be met: no token can follow the answer's ''"):
        for token in allowed:
            assert state.accept([token]) == 0


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "string", "pattern": r"^(a)\1$"}, "#/pattern"),
        (closed(a={"not": {"type": "string", "pattern": "(?<=x)y"}}), "#/properties/a/not/pattern"),
        (closed(a={"$ref": "https://example.com/x"}), "#/properties/a/$ref"),
    ],
)
def test_a_refusal_has_the_place_in_the_given_schema(schema: Any, place: str) -> None:
    with pytest.raises(GrammarError) as refused:
        COMPILER.compile(constraint(schema))
    assert f" at {place}: " in str(refused.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 6) | st.sampled_from(["", "a", "ab", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries({}, optional={"a": inner, "b": inner, "c": inner}).map(
            lambda d: dict(sorted(d.items()))
        )
    ),
    max_leaves=5,
)
KEYS = st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True)
TYPES = st.sampled_from(["null", "boolean", "integer", "string", "array", "object"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    properties = st.fixed_dictionaries({}, optional={"a": inner, "b": inner, "c": inner}).map(
        lambda given: {name: given.get(name, True) for name in "abc"}  # so that the order of keys is known
    )
    parts: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "properties": properties,
        "required": KEYS,
        "additionalProperties": st.booleans(),
        "items": inner,
        "uniqueItems": st.just(True),
        "oneOf": some,
        "anyOf": some,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "minProperties": st.integers(0, 2),
        "maxProperties": st.integers(0, 2),
        "contains": inner,
        "minimum": st.integers(0, 4),
        "maxLength": st.integers(0, 2),
        "pattern": st.just("^a"),
        "enum": st.lists(st.sampled_from([None, True, 1, 2, "a", "b"]), min_size=1, max_size=3, unique_by=repr),
        "dependentRequired": st.dictionaries(st.sampled_from("abc"), KEYS, max_size=2),
        "propertyNames": st.sampled_from([{"enum": ["a", "b"]}, {"pattern": "^[ab]"}, {"not": {"const": "c"}}]),
    }
    return st.sets(st.sampled_from(sorted(parts)), min_size=1, max_size=3).flatmap(
        lambda names: st.fixed_dictionaries({name: parts[name] for name in sorted(names)})
    )


SCHEMAS = st.recursive(st.booleans() | st.builds(lambda kind: {"type": kind}, TYPES), _schemas, max_leaves=4)


@given(schema=SCHEMAS, values=st.lists(VALUES, min_size=1, max_size=6))
def test_no_written_answer_violates_the_schema(schema: Any, values: list[Any]) -> None:
    """Whatever the rewriting makes of a schema, an answer is valid; also where a schema is refused, it says so."""
    if not isinstance(schema, dict):
        return
    schema = {"properties": dict.fromkeys("abc", True), **schema}
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        try:
            is_allowed = is_written(schema, value)
        except GrammarError:
            return
        if is_allowed:
            assert validator.is_valid(value), (schema, value)


JUNK = st.sampled_from([None, 3, 1.5, float("inf"), "x", True, [], [[]], [{}], {}, {"a": 3}, {"a": [3]}, [None, "a"]])
KEYWORDS = st.sampled_from(
    [
        *("type", "properties", "required", "items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "if", "then"),
        *("enum", "const", "dependencies", "dependentRequired", "dependentSchemas", "propertyNames", "uniqueItems"),
        *("contains", "minContains", "minProperties", "maxProperties", "patternProperties", "pattern", "format"),
        *("additionalProperties", "unevaluatedProperties", "$ref", "$defs", "minLength", "minimum", "$schema"),
    ]
)


@given(
    schema=st.recursive(JUNK, lambda inner: st.dictionaries(KEYWORDS, inner | st.lists(inner, max_size=2), max_size=4)),
    is_rough=st.booleans(),
)
def test_what_is_no_schema_is_no_error_of_python(schema: Any, is_rough: bool) -> None:
    """The compiler refuses it, and says where."""
    if isinstance(schema, dict):
        with contextlib.suppress(GrammarError):
            AnswerChecks(schema, is_rough=is_rough)
