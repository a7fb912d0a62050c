"""Generate scripted answers token by token, without a model.

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
from itertools import cycle, islice

from llguidance import LLMatcher, LLTokenizer

from serving.grammar import compile_constraint
from serving.text import IncrementalDetokenizer, Tokenizer
from serving.types import (
    CHOSEN,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    RequestMetrics,
    SamplingParams,
    TokenLogprob,
    TokenPass,
)

# Tokens that complete a JSON value, for when the grammar does not allow the script's token.
_CLOSERS = ('"', "}", "]", '"}', '"]')


def echo(prompt: str) -> str:
    """The default answer: the prompt itself."""
    return prompt


class FakeModel:
    """A model that follows a script.

    Args:
        tokenizer: the tokenizer of the requests and answers.
        answer: maps the text of a prompt to the whole answer. Sampling with a temperature shuffles its tokens; a
            grammar keeps those that it allows.
    """

    def __init__(self, tokenizer: Tokenizer, answer: Callable[[str], str] = echo) -> None:
        self._tokenizer = tokenizer
        self._answer = answer

    def start(self, request: GenerationRequest, max_model_len: int) -> FakeGeneration:
        """Begin an answer. Takes up to a second for a constraint that is refused.

        Raises:
            GrammarError: the request's constraint does not compile.
        """
        constraint = request.constraint
        matcher = None if constraint is None else compile_constraint(constraint, self._grammar_tokenizer)
        prompt = self._tokenizer.decode(request.prompt_token_ids)
        tokens = self._tokenizer.encode(self._answer(prompt), add_bos=False)
        min_tokens = request.sampling.min_tokens
        if len(tokens) < min_tokens:
            repeated = cycle(tokens or self._tokenizer.encode(".", add_bos=False))
            tokens += islice(repeated, min_tokens - len(tokens))
        if request.sampling.temperature > 0:
            tokens = _sample(tokens, request.sampling)
        eos = self._tokenizer.eos_token_ids[0]
        size = self._tokenizer.vocab_size
        script = _Script(tokens, matcher, eos=eos, closers=self._closers, min_tokens=min_tokens, vocab_size=size)
        detokenizer = IncrementalDetokenizer(self._tokenizer, request.sampling.stop)
        return FakeGeneration(request, script, detokenizer, max_model_len, size)

    @cached_property
    def _grammar_tokenizer(self) -> LLTokenizer:
        return LLTokenizer(self._tokenizer.to_json(), eos_token=self._tokenizer.eos_token_ids[0])

    @cached_property
    def _closers(self) -> list[int]:
        ids = [self._tokenizer.encode(text, add_bos=False) for text in _CLOSERS]
        return [tokens[0] for tokens in ids if len(tokens) == 1]


def _sample(tokens: list[int], sampling: SamplingParams) -> list[int]:
    """Shuffle tokens by drawing each next one from the first few of those that remain.

    `top_k` is their number and `top_p` their proportion; `min_p` acts as if the n-th had 1/n of the first one's
    probability.
    """
    rng = random.Random(sampling.seed)
    remaining, drawn = list(tokens), []
    while remaining:
        kept = min(sampling.top_k or len(remaining), math.ceil(sampling.top_p * len(remaining)))
        if sampling.min_p:
            kept = min(kept, int(1 / sampling.min_p))
        drawn.append(remaining.pop(rng.randrange(kept)))
    return drawn


class FakeGeneration:
    """The generation of one answer, one delta a step."""

    def __init__(
        self,
        request: GenerationRequest,
        script: _Script,
        detokenizer: IncrementalDetokenizer,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self._vocab_size = vocab_size
        self._num_logprobs = request.sampling.logprobs
        self._tells_choices = request.sampling.choice_logprobs
        self._input_token_count = len(request.prompt_token_ids)
        self._room = min(request.sampling.max_tokens, max_model_len - self._input_token_count)
        self._script = script
        self._detokenizer = detokenizer
        self._accepted_at = time.monotonic()
        self._first_token_at: float | None = None
        self._num_tokens = 0
        self._num_steps = 0
        self._passes: list[TokenPass] = []

    def step(self) -> GenerationOutput:
        """The next delta; the last one has a finish reason."""
        self._num_steps += 1
        token_id = self._script.next_token()
        if token_id is None:
            return self._last_delta(self._detokenizer.flush(), (), FinishReason.STOP)
        self._num_tokens += 1
        choices = (self._script.choice_logprob,) if self._tells_choices else ()
        self._passes.append(TokenPass(time.monotonic() - self._accepted_at, (CHOSEN,), choice_logprobs=choices))
        self._first_token_at = self._first_token_at or time.monotonic()
        text = self._detokenizer.push([token_id])
        if self._detokenizer.stopped_by is not None:
            return self._last_delta(text, (token_id,), FinishReason.STOP)
        if self._num_tokens == self._room:
            reason = FinishReason.STOP if self._script.is_complete else FinishReason.LENGTH
            return self._last_delta(text + self._detokenizer.flush(), (token_id,), reason)
        return GenerationOutput(text, (token_id,), logprobs=self._logprobs((token_id,)))

    def _last_delta(self, text: str, token_ids: tuple[int, ...], reason: FinishReason) -> GenerationOutput:
        first = self._first_token_at
        metrics = RequestMetrics(
            input_token_count=self._input_token_count,
            output_token_count=self._num_tokens,
            model_passes=self._num_steps,
            cached_token_count=0,
            time_to_first_token=None if first is None else first - self._accepted_at,
            total_time=time.monotonic() - self._accepted_at,
            passes=tuple(self._passes),
        )
        return GenerationOutput(text, token_ids, reason, metrics, self._logprobs(token_ids))

    def _logprobs(self, token_ids: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
        """Log probabilities as if the chosen token had probability 1/2 and all others were equally likely."""
        if self._num_logprobs is None:
            return ()
        other = -math.log(2 * (self._vocab_size - 1))
        result = []
        for chosen in token_ids:
            others = [token_id for token_id in range(self._num_logprobs) if token_id != chosen]
            top = [(chosen, -math.log(2)), *((token_id, other) for token_id in others)][: self._num_logprobs]
            result.append(TokenLogprob(chosen, -math.log(2), tuple(top)))
        return tuple(result)


class _Script:
    """The tokens of one answer: the scripted ones, as far as the grammar allows them."""

    def __init__(
        self,
        tokens: list[int],
        matcher: LLMatcher | None,
        *,
        eos: int,
        closers: list[int],
        min_tokens: int,
        vocab_size: int,
    ) -> None:
        self._script = iter(tokens)
        self._next = next(self._script, None)
        self._matcher = matcher
        self._eos = eos
        self._closers = closers
        self._num_before_end = min_tokens
        self._vocab_size = vocab_size
        self.choice_logprob = -math.log(2)
        """That of the last token, made up: the more tokens are allowed, the harder is the choice."""

    @property
    def is_complete(self) -> bool:
        """Whether the grammar allows no further token."""
        return self._matcher is not None and bool(self._matcher.is_stopped())

    def next_token(self) -> int | None:
        """The next token; None if the answer is complete."""
        if self._matcher is None:
            return self._advance_script()
        if self.is_complete:
            return None
        token_id = self._choose(self._matcher.compute_bitmask())
        if token_id is None:
            return None
        self._matcher.consume_token(token_id)
        self._num_before_end -= 1
        return token_id

    def _choose(self, bitmask: bytes) -> int | None:
        """The script's token if it is allowed, else one that completes the answer, else the lowest allowed id."""
        allowed = int.from_bytes(bitmask, "little")
        assert allowed, "a grammar that has not stopped allows some token"
        self.choice_logprob = math.log(1 - (allowed.bit_count() - 1) / (2 * self._vocab_size))
        if self._num_before_end > 0:
            allowed = allowed & ~(1 << self._eos) or allowed
        if self._next is not None and allowed >> self._next & 1:
            return self._advance_script()
        if allowed >> self._eos & 1:
            return None
        for token_id in self._closers:
            if allowed >> token_id & 1:
                return token_id
        return (allowed & -allowed).bit_length() - 1

    def _advance_script(self) -> int | None:
        token_id, self._next = self._next, next(self._script, None)
        return token_id
