"""Grammars for the drafter are compiled once, in the background, and a bad one only raises; needs no vLLM."""

from __future__ import annotations

import json
import threading
import time

import llguidance
import pytest

from serving.engines.vllm import batch_drafts
from serving.engines.vllm.batch_drafts import DraftGrammars
from serving.errors import GrammarError
from serving.grammar.grammar_state import GrammarState
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def vocabulary() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(TOKENIZER.to_json(), eos_token=list(TOKENIZER.eos_token_ids))


def make(**options: int) -> DraftGrammars:
    return DraftGrammars(vocabulary(), **options)


def begin(grammars: DraftGrammars, text: str) -> GrammarState:
    for _ in range(500):
        state = grammars.begin(text)
        if state is not None:
            return state
        time.sleep(0.01)
    raise AssertionError("never compiled")


def text_of(schema: dict[str, object]) -> str:
    """As vLLM's guidance backend writes it without optional white space."""
    return llguidance.LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})


def test_any_json_schema_forces_its_tokens() -> None:
    state = begin(make(), text_of(SCHEMA))
    assert TOKENIZER.decode(state.forced_tokens()).startswith('{"name')


def test_each_request_has_a_state_of_its_own() -> None:
    grammars, text = make(), text_of(SCHEMA)
    first = begin(grammars, text)
    forced = first.forced_tokens()
    assert first.accept(forced) == len(forced)
    assert begin(grammars, text).forced_tokens() == forced


def test_a_grammar_that_does_not_compile_raises() -> None:
    with pytest.raises(GrammarError):
        begin(make(), json.dumps({"grammars": [{"lark_grammar": "start: missing"}]}))


def test_no_step_waits_for_a_grammar_that_compiles_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again in the next steps."""
    finish, compile_grammar = threading.Event(), batch_drafts.limited_matcher
    grammars, text = make(), text_of(SCHEMA)

    def slow(vocabulary: llguidance.LLTokenizer, grammar: str) -> llguidance.LLMatcher:
        finish.wait()
        return compile_grammar(vocabulary, grammar)

    monkeypatch.setattr(batch_drafts, "limited_matcher", slow)
    assert grammars.begin(text) is None
    finish.set()
    assert TOKENIZER.decode(begin(grammars, text).forced_tokens()).startswith('{"name')
