"""Where vLLM chose a token that a schema refuses, it is asked again behind the answer so far; needs no vLLM."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import llguidance
import pytest

from serving.clients.answer import EngineOutput
from serving.constraints import JsonSchemaConstraint
from serving.engines.vllm.batch_drafts import DraftGrammars
from serving.engines.vllm.choose_again import MOST, Begun, begun_of, chosen_again
from serving.errors import GrammarError
from serving.grammar import check_constraint
from serving.grammar.checked_state import CheckedState
from serving.grammar.compiler import GrammarCompiler
from serving.types import GenerationRequest, SamplingParams
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
EOS = TOKENIZER.eos_token_ids[0]
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
UNIQUE = {"type": "array", "items": DIGIT, "minItems": 3, "maxItems": 3, "uniqueItems": True}
TWICE = UNIQUE | {"items": {"type": "integer", "minimum": 1, "maximum": 1}}


def constraint_of(schema: dict[str, Any]) -> JsonSchemaConstraint:
    return JsonSchemaConstraint(json.dumps(schema), ",", ":")


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_bos=False)


class Server:
    """Writes texts by turns, some tokens at a time, and keeps what it was asked."""

    def __init__(self, *texts: str, at_once: int = 2) -> None:
        self._texts = list(texts)
        self._at_once = at_once
        self.asked: list[tuple[GenerationRequest, Begun]] = []
        self.closed = 0

    async def ask(self, request: GenerationRequest, begun: Begun) -> AsyncGenerator[EngineOutput]:
        self.asked.append((request, begun))
        tokens = [*ids(self._texts[min(len(self.asked), len(self._texts)) - 1]), EOS]
        try:
            for start in range(0, len(tokens), self._at_once):
                part = tokens[start : start + self._at_once]
                yield EngineOutput(part, "stop" if part[-1] == EOS else None)
        finally:
            self.closed += 1


async def given(server: Server, schema: dict[str, Any]) -> str:
    compiler = GrammarCompiler(TOKENIZER, vocab_size=TOKENIZER.vocab_size)
    state = compiler.compile(constraint_of(schema))
    assert isinstance(state, CheckedState)
    request = GenerationRequest(
        "a", tuple(ids("?")), SamplingParams(max_tokens=50, min_tokens=2), constraint_of(schema)
    )
    tokens: list[int] = []
    async for output in chosen_again(server.ask, request, state):
        tokens += output.token_ids
    return TOKENIZER.decode(token for token in tokens if token != EOS)


@pytest.mark.parametrize("at_once", [1, 2, 50])
async def test_the_rest_is_asked_for_without_what_was_refused(at_once: int) -> None:
    server = Server("[1,1,3]", "2,2]", "3]", at_once=at_once)
    assert await given(server, UNIQUE) == "[1,2,3]"
    assert server.closed == len(server.asked) == 3
    for (request, begun), written, refused in zip(server.asked, ("", "[1,", "[1,2,"), ("", "1", "2"), strict=True):
        assert begun == Begun(tuple(ids(written)), tuple(ids(refused)))
        assert request.prompt_token_ids == (*ids("?"), *ids(written))
        assert request.sampling.max_tokens == 50 - len(ids(written))
        assert request.sampling.min_tokens == max(0, 2 - len(ids(written)))
    assert len({request.request_id for request, _ in server.asked}) == 3


async def test_an_answer_that_is_right_is_asked_for_once() -> None:
    server = Server("[1,2,3]")
    assert await given(server, UNIQUE) == "[1,2,3]"
    assert [begun for _, begun in server.asked] == [Begun()]


@pytest.mark.parametrize(
    ("schema", "times"), [(TWICE, lambda times: times == 1), (UNIQUE, lambda times: times == MOST + 1)]
)
async def test_what_cannot_be_met_is_an_error_with_the_keyword(
    schema: dict[str, Any], times: Callable[[int], bool]
) -> None:
    """Where nothing else can follow at once; and where vLLM chooses the same again and again."""
    server = Server("[1,1,1]", "1,1]")
    with pytest.raises(GrammarError, match="#/uniqueItems could not be met"):
        await given(server, schema)
    assert times(len(server.asked))


def test_a_grammar_says_where_it_begins_and_drafts_begin_there() -> None:
    grammar = check_constraint(constraint_of(UNIQUE))
    begun = Begun(tuple(ids("[1")), (5,))
    assert (begun_of(grammar), begun_of(begun.written(grammar))) == (Begun(), begun)
    assert begun_of('start: "x-begun"') == begun_of("start: %json x-begun") == Begun()
    grammars = DraftGrammars(llguidance.LLTokenizer(TOKENIZER.to_json(), eos_token=list(TOKENIZER.eos_token_ids)))
    while (state := grammars.begin(begun.written(grammar))) is None:
        time.sleep(0.01)
    assert TOKENIZER.decode(state.forced_tokens()) == ","
