"""Answers, token by token, without a model.

Owns: the script that a fake engine follows, how it stays within a grammar, and its deltas.
Knows nothing of threads or queues.

    model = FakeModel(tokenizer, answer=lambda prompt: '{"calculations": [{"op": "COUNT"}]}')
    generation = model.start(request, max_model_len=8192)
    while (delta := generation.step()).finish_reason is None: ...
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from functools import cached_property

from llguidance import LLMatcher, LLTokenizer

from serving.errors import GrammarError
from serving.text import IncrementalDetokenizer, Tokenizer
from serving.types import FinishReason, GenerationOutput, GenerationRequest, RequestMetrics, SamplingParams

# What ends a JSON value soonest, for the steps at which the script has nothing that fits.
_CLOSERS = ('"', "}", "]", '"}', '"]')


def echo(prompt: str) -> str:
    """The default answer: different prompts get different answers."""
    return prompt


class FakeModel:
    """Follows a script.

    Args:
        tokenizer: whose tokens the requests and answers are made of.
        answer: from the text of a prompt to the whole answer. Sampling at a temperature changes the
            order of its tokens; a grammar keeps of them what fits.
    """

    def __init__(self, tokenizer: Tokenizer, answer: Callable[[str], str] = echo) -> None:
        self._tokenizer = tokenizer
        self._answer = answer

    def start(self, request: GenerationRequest, max_model_len: int) -> FakeGeneration:
        """Begin an answer.

        Raises:
            GrammarError: the request's grammar does not compile.
        """
        matcher = None if request.grammar is None else self._compile(request.grammar)
        prompt = self._tokenizer.decode(request.prompt_token_ids)
        tokens = self._tokenizer.encode(self._answer(prompt), add_bos=False)
        if request.sampling.temperature > 0:
            tokens = _sample(tokens, request.sampling)
        eos = self._tokenizer.eos_token_ids[0]
        script = _Script(tokens, matcher, eos=eos, closers=self._closers)
        detokenizer = IncrementalDetokenizer(self._tokenizer, request.sampling.stop)
        return FakeGeneration(request, script, detokenizer, max_model_len)

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._grammar_tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            raise GrammarError(f"the grammar does not compile: {matcher.get_error()}")
        return matcher

    @cached_property
    def _grammar_tokenizer(self) -> LLTokenizer:
        return LLTokenizer(self._tokenizer.to_json(), eos_token=self._tokenizer.eos_token_ids[0])

    @cached_property
    def _closers(self) -> list[int]:
        ids = [self._tokenizer.encode(text, add_bos=False) for text in _CLOSERS]
        return [tokens[0] for tokens in ids if len(tokens) == 1]


def _sample(tokens: list[int], sampling: SamplingParams) -> list[int]:
    """The tokens in another order: each next one is drawn from the first of those that remain.

    As a model draws from the likeliest: `top_k` and `top_p` say how many or what share of them.
    """
    rng = random.Random(sampling.seed)
    remaining, drawn = list(tokens), []
    while remaining:
        kept = min(sampling.top_k or len(remaining), math.ceil(sampling.top_p * len(remaining)))
        drawn.append(remaining.pop(rng.randrange(kept)))
    return drawn


class FakeGeneration:
    """One request on its way, a delta a step."""

    def __init__(
        self,
        request: GenerationRequest,
        script: _Script,
        detokenizer: IncrementalDetokenizer,
        max_model_len: int,
    ) -> None:
        self._input_token_count = len(request.prompt_token_ids)
        self._room = min(request.sampling.max_tokens, max_model_len - self._input_token_count)
        self._script = script
        self._detokenizer = detokenizer
        self._accepted_at = time.monotonic()
        self._first_token_at: float | None = None
        self._num_tokens = 0
        self._num_steps = 0

    def step(self) -> GenerationOutput:
        """The next delta; the one with a finish reason is the last."""
        self._num_steps += 1
        token_id = self._script.next_token()
        if token_id is None:
            return self._last_delta(self._detokenizer.flush(), (), FinishReason.STOP)
        self._num_tokens += 1
        self._first_token_at = self._first_token_at or time.monotonic()
        text = self._detokenizer.push([token_id])
        if self._detokenizer.stopped_by is not None:
            return self._last_delta(text, (token_id,), FinishReason.STOP)
        if self._num_tokens == self._room:
            reason = FinishReason.STOP if self._script.is_complete else FinishReason.LENGTH
            return self._last_delta(text + self._detokenizer.flush(), (token_id,), reason)
        return GenerationOutput(text, (token_id,))

    def _last_delta(self, text: str, token_ids: tuple[int, ...], reason: FinishReason) -> GenerationOutput:
        first = self._first_token_at
        metrics = RequestMetrics(
            input_token_count=self._input_token_count,
            output_token_count=self._num_tokens,
            model_passes=self._num_steps,
            cached_token_count=0,
            time_to_first_token=None if first is None else first - self._accepted_at,
            total_time=time.monotonic() - self._accepted_at,
        )
        return GenerationOutput(text, token_ids, reason, metrics)


class _Script:
    """The tokens of one answer: those wanted, as far as the grammar allows them."""

    def __init__(self, wanted: list[int], matcher: LLMatcher | None, *, eos: int, closers: list[int]) -> None:
        self._script = iter(wanted)
        self._wanted = next(self._script, None)
        self._matcher = matcher
        self._eos = eos
        self._closers = closers

    @property
    def is_complete(self) -> bool:
        """The grammar allows nothing more."""
        return self._matcher is not None and bool(self._matcher.is_stopped())

    def next_token(self) -> int | None:
        """The next token; None when the answer is complete."""
        if self._matcher is None:
            return self._advance_script()
        if self.is_complete:
            return None
        token_id = self._choose(self._matcher.compute_bitmask())
        if token_id is None:
            return None
        self._matcher.consume_token(token_id)
        return token_id

    def _choose(self, bitmask: bytes) -> int | None:
        """The script's token if it fits, else what completes the answer, else the lowest id."""
        allowed = int.from_bytes(bitmask, "little")
        assert allowed, "a grammar that has not stopped allows some token"
        if self._wanted is not None and allowed >> self._wanted & 1:
            return self._advance_script()
        if allowed >> self._eos & 1:
            return None
        for token_id in self._closers:
            if allowed >> token_id & 1:
                return token_id
        return (allowed & -allowed).bit_length() - 1

    def _advance_script(self) -> int | None:
        token_id, self._wanted = self._wanted, next(self._script, None)
        return token_id
