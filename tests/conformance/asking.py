"""Makes the suite's requests, collects answers, and checks the rules that hold for every stream."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from dataclasses import dataclass

from serving.constraints import LarkConstraint
from serving.engine import Engine
from serving.text import Tokenizer
from serving.types import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    RequestMetrics,
    SamplingParams,
    TokenLogprob,
)

# They end in the middle of an answer, so that a model trained on queries continues it.
_BEGUN = itertools.cycle(('{"calculations": [', '{"filters": [{"column": "', '{"breakdowns": ["'))
PROMPTS = [
    f"{subject} of {service} {period} {next(_BEGUN)}"
    for subject, service, period in itertools.product(
        ("slowest traces", "errors", "count of requests", "p99 of duration_ms"),
        ("checkout", "the search API", "café-frontend", "payments"),
        ("in the last hour", "today 🙂"),
    )
]
LONG = "start: /[a-z ]{2000}/"  # cannot be complete within the context, whatever the model generates
_ids = itertools.count()


@dataclass(frozen=True)
class Answer:
    """All deltas of one request."""

    deltas: tuple[GenerationOutput, ...]
    finish_reason: FinishReason
    metrics: RequestMetrics

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.token_ids)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        return tuple(logprob for delta in self.deltas for logprob in delta.logprobs)


def ask(
    tokenizer: Tokenizer,
    prompt: str = PROMPTS[0],
    *,
    max_tokens: int = 24,
    grammar: str | None = None,
    adapter: str | None = None,
    **sampling,
) -> GenerationRequest:
    """A request with a unique id."""
    params = SamplingParams(max_tokens=max_tokens, **sampling)
    return GenerationRequest(
        f"request-{next(_ids)}",
        tuple(tokenizer.encode(prompt)),
        params,
        LarkConstraint(grammar) if grammar is not None else None,
        adapter,
    )


def ask_long(tokenizer: Tokenizer, prompt: str = PROMPTS[0]) -> GenerationRequest:
    """A request whose answer has at least a hundred tokens."""
    return ask(tokenizer, prompt, max_tokens=10_000, grammar=LONG)


async def answer(engine: Engine, request: GenerationRequest) -> Answer:
    """Read a request to its end."""
    async with aclosing(engine.generate(request)) as stream:
        deltas = tuple([delta async for delta in stream])
    *earlier, last = deltas
    assert all(delta.finish_reason is None and delta.metrics is None for delta in earlier)
    assert last.finish_reason is not None and last.metrics is not None
    whole = Answer(deltas, last.finish_reason, last.metrics)
    assert whole.metrics.input_token_count == len(request.prompt_token_ids)
    assert whole.metrics.output_token_count == len(whole.token_ids) <= request.sampling.max_tokens
    for delta in deltas:
        shown = delta.token_ids if request.sampling.logprobs is not None else ()
        assert tuple(logprob.token_id for logprob in delta.logprobs) == shown
    return whole


async def answers(engine: Engine, requests: list[GenerationRequest]) -> list[Answer]:
    """Read all requests to their ends, concurrently."""
    return await asyncio.gather(*(answer(engine, request) for request in requests))


async def read_some(engine: Engine, request: GenerationRequest, num_deltas: int = 3) -> None:
    """Read the first deltas, then close the stream."""
    async with aclosing(engine.generate(request)) as stream:
        for _ in range(num_deltas):
            assert (await anext(stream)).finish_reason is None


async def until_idle(engine: Engine, timeout: float = 60.0) -> None:
    """Wait until an engine has freed its cancelled requests."""
    async with asyncio.timeout(timeout):
        while (stats := engine.stats()).num_running or stats.num_waiting:
            await asyncio.sleep(0.005)
