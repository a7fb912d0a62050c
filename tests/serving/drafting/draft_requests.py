"""Requests and drafters for tests of the drafter, with a tiny tokenizer and real grammars."""

from __future__ import annotations

from serving.constraints import LarkConstraint
from serving.drafting.ngrams import NgramTable
from serving.drafting.speculative import LinearCost, SpeculativeDrafter
from serving.engines.paged.request import Request
from serving.grammar.compiler import GrammarCompiler
from serving.types import GenerationRequest
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
GRAMMARS = GrammarCompiler(TOKENIZER, vocab_size=TOKENIZER.vocab_size)
GRAMMAR = 'start: "{\\"column\\": \\"" NAME "\\"}"\nNAME: "duration" | "durable" | "name"\n'


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_bos=False)


def make_request(prompt: str, written: str = "", grammar: str | None = None, name: str = "r") -> Request:
    state = None if grammar is None else GRAMMARS.compile(LarkConstraint(grammar))
    request = Request(GenerationRequest(name, tuple(encode(prompt))), seed=0, grammar=state)
    request.token_ids += encode(written)
    if state is not None:
        assert state.accept(encode(written)) == len(encode(written))
    return request


def make_drafter(texts: list[str] | None = None, row_cost: float = 0.0) -> SpeculativeDrafter:
    table = None if texts is None else NgramTable.build([encode(text) for text in texts])
    drafter = SpeculativeDrafter(table, cost=LinearCost(row_cost), without_space=TOKENIZER.without_space)
    drafter.begin_step(1)
    return drafter


def propose(drafter: SpeculativeDrafter, request: Request, max_tokens: int = 30) -> str:
    return TOKENIZER.decode(drafter.propose(request, max_tokens))
