"""Every engine obeys each kind of constraint: greedy and sampled, alone and in a batch, truncated and refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace

import jsonschema
import pytest

from serving.constraints import Constraint, JsonSchemaConstraint, LarkConstraint
from serving.engine import Engine
from serving.errors import GrammarError
from serving.types import FinishReason, GenerationRequest
from tests.conformance.asking import PROMPTS, answer, answers, ask
from tests.conformance.kinds import Kind

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"enum": ["a", "ü", 3]},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
FLAT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3},
        "inner": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    },
    "required": ["id", "count", "tags", "inner"],
    "additionalProperties": False,
}
ANY_SCRIPT = {
    "type": "object",
    "properties": {
        "größe": {"type": "integer", "exclusiveMinimum": -3, "maximum": 40, "multipleOf": 5},
        "名": {"type": "string", "pattern": "^[ぁ-んé🙂]{1,4}$"},
        "range": {"type": "number", "minimum": -1.5, "maximum": 1},
    },
    "required": ["größe", "名"],
    "additionalProperties": False,
}
DATE = r"[0-9]{4}-[01][0-9](\/[a-z]{2})?"
CHOICES = ("yes", "no (a+b)", "a|b", "tab\there", 'quoted "c"', "naïve/slash\\")


def one_of(*texts: str) -> LarkConstraint:
    return LarkConstraint("start: " + " | ".join(map(json.dumps, texts)))


def is_json_of(schema: dict, spaced: bool | None) -> Callable[[str], bool]:
    """Valid under the schema by another implementation, and written with exactly these separators if they are fixed."""

    def check(text: str) -> bool:
        value = json.loads(text)
        jsonschema.validate(value, schema)
        separators = (", ", ": ") if spaced else (",", ":")
        return spaced is None or text == json.dumps(value, ensure_ascii=False, separators=separators)

    return check


CONSTRAINTS: dict[str, tuple[Constraint, Callable[[str], object]]] = {
    "lark": (LarkConstraint('start: "[" /[a-c]{1,4}/ "]"'), re.compile(r"\[[a-c]{1,4}\]").fullmatch),
    "regex": (LarkConstraint(f"start: /{DATE}/"), re.compile(DATE).fullmatch),
    "choice": (one_of(*CHOICES), CHOICES.__contains__),
    "schema": (JsonSchemaConstraint(json.dumps(FLAT)), is_json_of(FLAT, spaced=True)),
    "compact schema": (JsonSchemaConstraint(json.dumps(FLAT), ",", ":"), is_json_of(FLAT, spaced=False)),
    "recursive schema": (JsonSchemaConstraint(json.dumps(TREE)), is_json_of(TREE, spaced=True)),
    "any script": (JsonSchemaConstraint(json.dumps(ANY_SCRIPT), ",[ ]?", ":[ ]?"), is_json_of(ANY_SCRIPT, spaced=None)),
    "one text": (one_of("nothing else 🙂"), "nothing else 🙂".__eq__),
}
REFUSED: dict[str, tuple[Constraint, str]] = {
    "lark": (LarkConstraint("start: missing"), "missing"),
    "regex": (LarkConstraint("start: /(?=a)b/"), "look-around"),
    "many choices": (one_of(*map(str, range(100_000))), "characters, and the limit is 524,288"),
    "not JSON": (JsonSchemaConstraint("{"), "not JSON"),
    "keyword": (
        JsonSchemaConstraint('{"type": "object", "properties": {"a/b": {"type": "string", "pattern": "(?<=a)b"}}}'),
        "at #/properties/a~1b/pattern",
    ),
    "options inside": (JsonSchemaConstraint('{"x-guidance": {"whitespace_flexible": true}}'), "at #/x-guidance"),
    "special tokens": (LarkConstraint('start: "a" <[0]>'), "special tokens"),
    "hostile schema": (JsonSchemaConstraint('{"type": "integer", "multipleOf": 99999989}'), "limit"),
}


def constrained(kind: Kind, constraint: Constraint, prompt: str = PROMPTS[0], **sampling: object) -> GenerationRequest:
    return replace(ask(kind.tokenizer, prompt, **{"max_tokens": 150, **sampling}), constraint=constraint)


@pytest.mark.parametrize("name", CONSTRAINTS)
async def test_answers_match(engine: Engine, kind: Kind, name: str) -> None:
    constraint, matches = CONSTRAINTS[name]
    requests = [constrained(kind, constraint)]
    requests += [constrained(kind, constraint, temperature=1.5, seed=seed) for seed in range(11)]
    finished = [whole for whole in await answers(engine, requests) if whole.finish_reason is FinishReason.STOP]
    assert finished, "no answer ended, so the test shows nothing"
    for whole in finished:
        assert matches(whole.text), whole.text


async def test_constraints_of_different_kinds_do_not_mix(engine: Engine, kind: Kind) -> None:
    asked = [(name, seed) for name in CONSTRAINTS for seed in range(4)]
    requests = [constrained(kind, CONSTRAINTS[name][0], temperature=1.0, seed=seed) for name, seed in asked]
    for (name, _), whole in zip(asked, await answers(engine, requests), strict=True):
        if whole.finish_reason is FinishReason.STOP:
            assert CONSTRAINTS[name][1](whole.text), (name, whole.text)


@pytest.mark.parametrize("name", ["schema", "choice", "regex"])
async def test_a_truncated_answer_is_the_beginning_of_the_whole(engine: Engine, kind: Kind, name: str) -> None:
    constraint = CONSTRAINTS[name][0]
    whole = await answer(engine, constrained(kind, constraint))
    short = await answer(engine, constrained(kind, constraint, max_tokens=2))
    assert whole.text.startswith(short.text)
    assert short.finish_reason is FinishReason.LENGTH or short.text == whole.text


async def test_a_constraint_that_is_refused_late_does_not_delay_other_requests(engine: Engine, kind: Kind) -> None:
    # The first request may build indices and kernels.
    await answer(engine, constrained(kind, one_of("warm")))
    # Three at once, each refused after half a second of processor time. An answer that waited for them would be last.
    hostile = [constrained(kind, REFUSED["hostile schema"][0]) for _ in range(3)]
    refused = asyncio.gather(*(answer(engine, request) for request in hostile), return_exceptions=True)
    answered = 0
    while not refused.done():
        # A new grammar each time, so that it must be compiled while the hostile ones are.
        text = f"a{answered}"
        assert (await answer(engine, constrained(kind, one_of(text)))).text == text
        answered += not refused.done()
    assert answered
    for error in await refused:
        assert isinstance(error, GrammarError) and "limit" in str(error)


@pytest.mark.parametrize("name", REFUSED)
async def test_an_invalid_constraint_is_refused_with_the_place_of_the_error(
    engine: Engine, kind: Kind, name: str
) -> None:
    constraint, named = REFUSED[name]
    with pytest.raises(GrammarError, match=re.escape(named)):
        await answer(engine, constrained(kind, constraint))
    constraint, matches = CONSTRAINTS["choice"]
    assert matches((await answer(engine, constrained(kind, constraint))).text), "the engine continues"
