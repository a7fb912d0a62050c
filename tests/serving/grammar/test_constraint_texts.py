"""What each kind of constraint allows, and which are refused before they are compiled."""

from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer
from llguidance.gbnf_to_lark import is_lark_syntax

from serving.constraints import Constraint, JsonSchemaConstraint, LarkConstraint
from serving.errors import GrammarError
from serving.grammar import check_constraint, compile_constraint

BYTES = LLTokenizer("byte")
FLAT = json.dumps({"properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {}}, "required": ["a"]})


def allows(constraint: Constraint, text: str) -> bool:
    matcher = compile_constraint(constraint, BYTES)
    tokens = BYTES.tokenize_bytes(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("separators", "text"),
    [
        ((), '{"a": [1, 2], "b": "x"}'),
        ((",", ":"), '{"a":[1,2],"b":"x"}'),
        ((",[ ]?", ":[ ]?"), '{"a":[1, 2], "b": "x"}'),
        ((",[ ]?", ":[ ]?"), '{"a": [1,2],"b":"x"}'),
    ],
)
def test_json_is_written_with_the_separators_of_the_constraint(separators: tuple[str, ...], text: str) -> None:
    constraint = JsonSchemaConstraint(FLAT, *separators)
    assert allows(constraint, text)
    for other in (
        text.replace("[", "[ "),
        text.replace(", ", ",  "),
        text.replace(",", ",\n"),
        " " + text,
        text + "\n",
    ):
        assert other == text or not allows(constraint, other)
    assert not allows(JsonSchemaConstraint(FLAT), '{"a":[1,2]}')


@pytest.mark.parametrize("separator", ["", ";", ",?", r"\s*,", ", *x?", "(", ",,"])
def test_separators_that_are_not_json_are_refused(separator: str) -> None:
    with pytest.raises(GrammarError, match=r"item_separator .*; one that works: ',\[ \]\?'"):
        check_constraint(JsonSchemaConstraint("{}", item_separator=separator))


REFUSED: list[tuple[Constraint, str]] = [
    (JsonSchemaConstraint(""), "not JSON"),
    (JsonSchemaConstraint("{"), "not JSON"),
    (JsonSchemaConstraint('{"minimum": NaN}'), "NaN is not a JSON number"),
    (JsonSchemaConstraint('{"enum": [1e999]}'), "not JSON|compile"),
    (JsonSchemaConstraint('{"type": "string", "type": "null"}'), "key 'type' twice"),
    (JsonSchemaConstraint("3"), "give an object, or true"),
    (JsonSchemaConstraint('["type"]'), "give an object, or true"),
    (JsonSchemaConstraint("false"), "allows no value"),
    (JsonSchemaConstraint('{"enum": ["\\ud800"]}'), "at #/enum/0"),
    (JsonSchemaConstraint("[" * 100_000), "nested too deeply"),
    (JsonSchemaConstraint('{"items": ' * 200 + "{}" + "}" * 200), "recursion limit"),
    (LarkConstraint("start: /(?=a)b/"), "grammar does not compile: .*look-around"),
    (LarkConstraint(r"start: /(a)\1/"), "backreferences"),
    (LarkConstraint('start: "\ud800"'), "half a surrogate pair"),
    (LarkConstraint("start: missing"), "grammar does not compile: .*missing"),
    (LarkConstraint(""), "no start rule"),
    (LarkConstraint('root ::= "a"'), "grammar does not compile"),
    (LarkConstraint('start: "a" <|im_end|>'), "special tokens"),
    (LarkConstraint("start: <[5]>"), "special tokens"),
    (LarkConstraint('start[temperature=0.5]: "a"'), "temperature, which would be ignored"),
    (LarkConstraint('start: a\na[capture, temperature=0.5]: "a"'), "temperature, which would be ignored"),
]


@pytest.mark.parametrize(("constraint", "reason"), REFUSED, ids=[str(item[0])[:60] for item in REFUSED])
def test_an_invalid_constraint_is_refused_with_the_reason(constraint: Constraint, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        check_constraint(constraint)


@pytest.mark.parametrize(
    "text", ['start: "a"', '?start: "<" | ">"', '%llguidance {}\nstart: "a"', 'x: "temperature"\nstart: x']
)
def test_all_grammars_look_like_lark_to_vllm(text: str) -> None:
    """vLLM reads all other text as llama.cpp's GBNF."""
    for constraint in (LarkConstraint(text), JsonSchemaConstraint("true")):
        assert is_lark_syntax(check_constraint(constraint))
