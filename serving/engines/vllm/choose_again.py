"""Lets vLLM choose again behind an answer that is right so far, where it has chosen a token that a schema refuses.

vLLM takes no token back. So the request is aborted, and another one has the answer so far at the end of its prompt,
which is in vLLM's prefix cache, and a grammar that begins behind it without the tokens that were refused there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from serving.clients.answer import EngineOutput
from serving.errors import GrammarError
from serving.grammar.checked_state import CheckedState
from serving.grammar.grammar_text import JSON_PREFIX, schema_of_grammar
from serving.types import GenerationRequest

MOST: Final = 8  # times that one answer is asked for again
_KEYWORD: Final = "x-begun"  # under which the grammar of JSON says where it begins


@dataclass(frozen=True, slots=True)
class Begun:
    """Where a grammar begins: behind `token_ids`, the answer so far, with none of the tokens `refused`."""

    token_ids: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()

    def written(self, grammar: str) -> str:
        """A grammar of JSON that says so."""
        return JSON_PREFIX + json.dumps({**schema_of_grammar(grammar), _KEYWORD: [self.token_ids, self.refused]})


def begun_of(grammar: str) -> Begun:
    """What a grammar says of where it begins."""
    schema = schema_of_grammar(grammar) if _KEYWORD in grammar else None
    token_ids, refused = ((), ()) if schema is None else schema.get(_KEYWORD, ((), ()))
    return Begun(tuple(token_ids), tuple(refused))


Ask = Callable[[GenerationRequest, Begun], AsyncGenerator[EngineOutput]]


async def chosen_again(ask: Ask, request: GenerationRequest, state: CheckedState) -> AsyncIterator[EngineOutput]:
    """The outputs for a request, of which none has a token that the schema refuses.

    `ask` asks vLLM for the rest of an answer. `state` is the constraint at its start; it follows the answer.

    Raises:
        GrammarError: no token can follow, or the answer was asked for too often; the message has the keyword.
    """
    begun = Begun()
    for number in range(MOST + 1):
        unmet: GrammarError | None = None
        async with aclosing(ask(_rest(request, begun, number), begun)) as outputs:
            async for output in outputs:
                tokens = list(output.token_ids)
                count = state.accept(tokens)
                if count == len(tokens) or (unmet := state.unmet(tokens[count])) is None:
                    begun = Begun((*begun.token_ids, *tokens))
                    yield output
                    continue
                if count:
                    logprobs = None if output.logprobs is None else output.logprobs[:count]
                    yield EngineOutput(tokens[:count], None, logprobs, output.num_cached_tokens)
                refused = () if count else begun.refused
                begun = Begun((*begun.token_ids, *tokens[:count]), (*refused, tokens[count]))
                break
        if unmet is None:
            return
    assert unmet is not None, "it was asked for too often"
    raise unmet


def _rest(request: GenerationRequest, begun: Begun, number: int) -> GenerationRequest:
    if not number:
        return request
    done = len(begun.token_ids)
    sampling: Any = request.sampling
    limits = {"max_tokens": sampling.max_tokens - done, "min_tokens": max(0, sampling.min_tokens - done)}
    return replace(
        request,
        request_id=f"{request.request_id}-{number}",
        prompt_token_ids=(*request.prompt_token_ids, *begun.token_ids),
        sampling=replace(sampling, **limits),
    )
