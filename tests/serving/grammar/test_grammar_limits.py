"""Checking any constraint ends soon, with an error that names a limit or with a usable grammar."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import closing

import psutil
import pytest
from llguidance import LLTokenizer

from serving.constraints import Constraint, JsonSchemaConstraint, LarkConstraint
from serving.errors import GrammarError
from serving.grammar import answer_checks, check_constraint, compile_constraint
from serving.grammar.grammar_text import CHECKED
from serving.grammar.guard import GrammarGuard

BYTES = LLTokenizer("byte")


def schema(value: object) -> JsonSchemaConstraint:
    return JsonSchemaConstraint(json.dumps(value))


def reference_chain(count: int) -> JsonSchemaConstraint:
    chain = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(count)}
    return schema({"$defs": {**chain, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"})


def rules(count: int, rule: Callable[[int], str]) -> LarkConstraint:
    return LarkConstraint("start: R0\n" + "\n".join(map(rule, range(count))) + f'\nR{count}: "x"')


TOO_MUCH: dict[str, tuple[Constraint, str]] = {
    "a long schema": (schema({"enum": ["x" * 100] * 50_000}), "5,200,010 characters, and the limit is 262,144"),
    "a long grammar": (LarkConstraint("start: " + '"a" ' * 10**6), "4,000,007 characters, and the limit is 524,288"),
    # A few dozen characters that would take llguidance minutes.
    "a large multiple": (schema({"type": "integer", "multipleOf": 99_999_989}), "over 0.5 s to compile|over 512 MB"),
    "patterns of all": (
        schema({"type": "string", "allOf": [{"pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(80)]}),
        "over 0.5 s to compile|over 512 MB",
    ),
    "terminals that double": (rules(300, lambda i: f"R{i}: R{i + 1} R{i + 1}"), "over 0.5 s|lexer configuration"),
    # These overflow its stack, and would end the process of the model.
    "a chain of references": (reference_chain(3_000), "compiler's stack"),
    "a chain of terminals": (rules(9_000, lambda i: f'R{i}: "a" R{i + 1}'), "compiler's stack"),
}


PATTERN = r"^$|(^(?:\S+\s+){0,99}\S+$)"


@pytest.mark.parametrize("where", [lambda text: text, lambda text: {"type": "object", "properties": {"a": text}}])
def test_a_length_with_which_a_pattern_fails_in_the_text_that_it_is_for_is_checked_instead(where) -> None:
    """The grammar would compile, and then "lexer error: too many expressions" would end the answer."""
    schema = where({"type": "string", "maxLength": 5000, "pattern": PATTERN})
    place, wrap = ("#/properties/a", lambda text: {"a": text}) if "properties" in schema else ("#", lambda text: text)
    constraint = JsonSchemaConstraint(json.dumps(schema))
    checks = answer_checks(constraint)
    assert checks is not None
    assert checks.first_error(wrap("a" * 5000)) is None
    assert checks.first_error(wrap("a" * 5001)) == f"{place}/maxLength"
    assert "maxLength" not in check_constraint(constraint).partition(CHECKED)[0]
    assert (
        answer_checks(JsonSchemaConstraint(json.dumps(where({"type": "string", "pattern": "^[a-z]{2,40}$"})))) is None
    )


def test_what_is_no_schema_may_have_a_pattern_that_no_grammar_takes() -> None:
    data = {"type": "string", "default": {"pattern": "("}, "pattern": "^a"}
    check_constraint(JsonSchemaConstraint(json.dumps({"type": "object", "properties": {"a": data}})))
    many = {f"p{n}": {"type": "string", "pattern": f"^[a-z]{{{1 + n}}}$"} for n in range(300)}
    check_constraint(JsonSchemaConstraint(json.dumps({"type": "object", "properties": many})))


def test_a_grammar_without_answers_is_refused_in_plain_words() -> None:
    with pytest.raises(GrammarError, match="the grammar does not compile: no answer can match it"):
        check_constraint(LarkConstraint("start: a\na: a"))


@pytest.mark.parametrize("name", TOO_MUCH)
def test_an_expensive_constraint_is_refused_with_the_limit(name: str) -> None:
    constraint, limit = TOO_MUCH[name]
    with pytest.raises(GrammarError, match=limit):
        check_constraint(constraint)


HARMLESS: dict[str, Constraint] = {
    "nested counts": LarkConstraint("start: /((((a{1,1000}){1,1000}){1,1000}){1,1000})/"),
    "states that double": LarkConstraint("start: /(.*a.{60}b.*){30}/"),
    "many alternatives": LarkConstraint(f"start: /{'|'.join(f'w{i}' for i in range(8_000))}/"),
    "many texts": LarkConstraint("start: TEXT\nTEXT: " + " | ".join(f'"text {i}"' for i in range(10_000))),
    "many names": schema({"properties": {f"p{i}": {"enum": ["a", "b"]} for i in range(800)}}),
    "many items": schema({"type": "array", "items": {"type": "array", "maxItems": 10**4}, "maxItems": 10**4}),
    "references": reference_chain(100),
    "levels": JsonSchemaConstraint('{"items": ' * 100 + "{}" + "}" * 100),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_constraint_that_only_looks_expensive_is_accepted(name: str) -> None:
    matcher = compile_constraint(HARMLESS[name], BYTES)
    assert any(matcher.compute_bitmask())


def test_an_expensive_constraint_does_not_delay_others() -> None:
    """On a busy machine the hostile check may be over before another process ran at all: three attempts."""
    with closing(GrammarGuard(num_processes=2)) as guard:
        guard.warm_up()
        assert any(_answered_beside_a_hostile_check(guard) > 1 for _ in range(3))


def _answered_beside_a_hostile_check(guard: GrammarGuard) -> int:
    hostile = 'start: %json {"type": "integer", "multipleOf": 99999989}'
    ended = threading.Event()

    def ask() -> None:
        with pytest.raises(GrammarError, match="limit"):
            guard.check(hostile, name="it")
        ended.set()

    thread = threading.Thread(target=ask)
    thread.start()
    answered = 0
    while not ended.is_set():
        guard.check('start: "a"', name="it")
        answered += not ended.is_set()
    thread.join()
    return answered


def test_a_process_that_ended_is_replaced() -> None:
    guard = GrammarGuard(num_processes=1)
    for _ in range(2):
        with pytest.raises(GrammarError, match="stack"):
            guard.check(_overflow(), name="it")
        guard.check('start: "a"', name="it")
    guard.close()
    guard.check('start: "a"', name="it")
    guard.close()


def test_a_process_that_was_ended_from_outside_is_replaced() -> None:
    guard, others = GrammarGuard(num_processes=1), set(psutil.Process().children())
    guard.warm_up()
    (process,) = set(psutil.Process().children()) - others
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and the guard may ask for its exit code
    guard.warm_up()
    guard.close()


def _overflow() -> str:
    return "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1}' for i in range(20_000)) + '\nr20000: "x"'
