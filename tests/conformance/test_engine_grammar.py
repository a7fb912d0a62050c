"""Every engine obeys a grammar: greedy and sampled, alone and in a batch, finished and truncated."""

from __future__ import annotations

import re

import pytest
from llguidance import LLMatcher, LLTokenizer

from serving.engine import Engine
from serving.text import Tokenizer
from serving.types import FinishReason
from tests.conformance.asking import PROMPTS, Answer, answer, answers, ask
from tests.conformance.kinds import Kind

QUERY = r"""
start: "{" calculations ("," " " breakdowns)? ("," " " filters)? "}"
calculations: "\"calculations\": [" calculation (", " calculation)* "]"
calculation: "{\"op\": \"COUNT\"}" | "{\"op\": \"" OP "\", \"column\": " column "}"
breakdowns: "\"breakdowns\": [" column (", " column)* "]"
filters: "\"filters\": [{\"column\": " column ", \"op\": \"=\", \"value\": " value "}]"
column: "\"" ("duration_ms" | "service.name" | "naïve" | "a\\\"b") "\""
value: /-?[0-9]{1,9}/ | "true" | "false" | /"[^"\\\x00-\x1f]{0,20}"/
OP: "AVG" | "P99" | "MAX"
"""
GRAMMARS = {
    "one of": ('start: "yes" | "no" | "not yet"', r"yes|no|not yet"),
    "date": ("start: /[0-9]{4}-[01][0-9]-[0-3][0-9]/", r"\d{4}-[01]\d-[0-3]\d"),
    "list": ('start: "[" item ("," item)* "]"\nitem: /[a-c]{1,3}/', r"\[[a-c]{1,3}(,[a-c]{1,3})*\]"),
    "empty": ('start: "a"?', r"a?"),
    "nested": ('start: "(" start? ")"', r"\(+\)+"),
    "script": ('start: /[ぁ-ん]{2,5}/ "。"', r"[ぁ-ん]{2,5}。"),
    "query": (QUERY, r'\{"calculations": \[.+\].*\}'),
}


def obeys(tokenizer: Tokenizer, name: str, whole: Answer) -> bool:
    """Checks a truncated answer with llguidance, and a complete one with a regular expression, too."""
    grammar, pattern = GRAMMARS[name]
    vocabulary = LLTokenizer(tokenizer.to_json(), eos_token=tokenizer.eos_token_ids[0])
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
    if whole.finish_reason is FinishReason.LENGTH:  # the last character may be incomplete
        ids = vocabulary.tokenize_bytes(b"".join(map(tokenizer.token_bytes, whole.token_ids)))
        return matcher.try_consume_tokens(ids) == len(ids)
    ids = vocabulary.tokenize_str(whole.text)
    is_match = re.fullmatch(pattern, whole.text) is not None
    return is_match and matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("sampling", [{}, {"temperature": 2.0}])
async def test_answers_to_different_grammars_at_once_obey_their_own(
    engine: Engine, kind: Kind, sampling: dict[str, float]
) -> None:
    """Greedy, and sampled at a temperature at which a model would obey nothing."""
    names = [name for name in GRAMMARS for _ in range(3)]
    requests = [
        ask(kind.tokenizer, prompt, grammar=GRAMMARS[name][0], max_tokens=60, seed=seed, **sampling)
        for seed, (name, prompt) in enumerate(zip(names, PROMPTS, strict=False))
    ]
    for name, whole in zip(names, await answers(engine, requests), strict=True):
        assert obeys(kind.tokenizer, name, whole), (name, whole.text)


@pytest.mark.parametrize("cut", [1, 5, 12])
async def test_a_truncated_answer_is_the_beginning_of_a_valid_one(engine: Engine, kind: Kind, cut: int) -> None:
    whole = await answer(engine, ask(kind.tokenizer, grammar=QUERY, max_tokens=cut))
    assert whole.finish_reason is FinishReason.LENGTH and obeys(kind.tokenizer, "query", whole)


async def test_stop_strings_work_together_with_a_grammar(engine: Engine, kind: Kind) -> None:
    whole = await answer(engine, ask(kind.tokenizer, grammar='start: "all there is"', stop=("ere",)))
    assert (whole.text, whole.finish_reason) == ("all th", FinishReason.STOP)


async def test_a_complete_grammar_ends_the_answer_with_stop(engine: Engine, kind: Kind) -> None:
    """Also at its last token: the end token is not counted by max_tokens."""
    grammar = 'start: "all there is"'
    whole = await answer(engine, ask(kind.tokenizer, grammar=grammar, max_tokens=100))
    exact = await answer(engine, ask(kind.tokenizer, grammar=grammar, max_tokens=len(whole.token_ids)))
    for one in (whole, exact):
        assert (one.text, one.finish_reason) == ("all there is", FinishReason.STOP)
