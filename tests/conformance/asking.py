"""How the suite asks an engine: requests, whole answers, and the rules that hold for every stream."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from dataclasses import dataclass

from serving.engine import Engine
from serving.text import Tokenizer
from serving.types import FinishReason, GenerationOutput, GenerationRequest, RequestMetrics, SamplingParams

# They end in the middle of an answer, so that a model trained on queries has something to say.
_BEGUN = itertools.cycle(('{"calculations": [', '{"filters": [{"column": "', '{"breakdowns": ["'))
PROMPTS = [
    f"{subject} of {service} {period} {next(_BEGUN)}"
    for subject, service, period in itertools.product(
        ("slowest traces", "errors", "count of requests", "p99 of duration_ms"),
        ("checkout", "the search API", "café-frontend", "payments"),
        ("in the last hour", "today 🙂"),
    )
]
LONG = "start: /[a-z ]{2000}/"  # never complete within the context, whatever the model wants
_ids = itertools.count()


@dataclass(frozen=True)
class Answer:
    """All that came for one request."""

    deltas: tuple[GenerationOutput, ...]
    finish_reason: FinishReason
    metrics: RequestMetrics

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.token_ids)


def ask(
    tokenizer: Tokenizer,
    prompt: str = PROMPTS[0],
    *,
    max_tokens: int = 24,
    grammar: str | None = None,
    adapter: str | None = None,
    **sampling,
) -> GenerationRequest:
    """A request with an id of its own."""
    params = SamplingParams(max_tokens=max_tokens, **sampling)
    return GenerationRequest(
        f"request-{next(_ids)}", tuple(tokenizer.encode(prompt)), params, grammar, adapter
    )


def ask_long(tokenizer: Tokenizer, prompt: str = PROMPTS[0]) -> GenerationRequest:
    """A request that goes on for at least a hundred tokens."""
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
    return whole


async def answers(engine: Engine, requests: list[GenerationRequest]) -> list[Answer]:
    """Read requests to their ends, all at once."""
    return await asyncio.gather(*(answer(engine, request) for request in requests))


async def read_some(engine: Engine, request: GenerationRequest, num_deltas: int = 3) -> None:
    """Read the first deltas, then go away."""
    async with aclosing(engine.generate(request)) as stream:
        for _ in range(num_deltas):
            assert (await anext(stream)).finish_reason is None


async def until_idle(engine: Engine, timeout: float = 10.0) -> None:
    """Wait for an engine to let go of what was cancelled."""
    async with asyncio.timeout(timeout):
        while (stats := engine.stats()).num_running or stats.num_waiting:
            await asyncio.sleep(0.005)
