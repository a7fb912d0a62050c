"""Computes lower bounds of decoding times from bandwidth and arithmetic (Williams et al. 2009, "Roofline")."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.plan.hardware import Gpu
from pipeline.plan.memory_budget import GPU_SHARE, MIB, Memory, ModelShape


@dataclass(frozen=True, slots=True)
class Load:
    """The sizes of a typical request.

    Args:
        prompt_tokens: prompt tokens that are not in the prefix cache.
        answer_tokens: generated tokens.
        context: maximum tokens of a request; memory is planned for this many.
        tokens_per_pass: tokens that one decoding pass yields per request; above 1 with speculation.
    """

    prompt_tokens: int
    answer_tokens: int
    context: int
    tokens_per_pass: float = 1.0

    @property
    def mean_tokens(self) -> int:
        """Tokens that a request holds on average while it decodes."""
        return self.prompt_tokens + self.answer_tokens // 2


@dataclass(frozen=True, slots=True)
class Fit:
    """A model on a card. Times are lower bounds in seconds.

    Args:
        fits: whether at least one request of `context` tokens fits.
        kv_tokens: tokens that the KV cache holds.
        max_concurrency: how many requests of `context` tokens fit at the same time, as vLLM reports it.
        batch: number of concurrent requests that the cost is computed for.
        time_per_token_alone: seconds per token with one request.
        time_per_token: seconds per token of each request with `batch` requests.
        answer_seconds: duration of one request alone, prefill included.
        answers_per_second: the rate with `batch` concurrent requests.
        largest_context: the largest context with which one request fits.
    """

    gpu: Gpu
    fits: bool
    kv_tokens: int
    max_concurrency: float
    batch: int
    time_per_token_alone: float
    time_per_token: float
    answer_seconds: float
    answers_per_second: float
    largest_context: int

    def cost_per_thousand(self, price: float | None) -> float | None:
        """Dollars for 1,000 answers on a card that is always busy, at `price` dollars a second."""
        return None if price is None or not self.fits else 1000 * price / self.answers_per_second


def step_seconds(shape: ModelShape, memory: Memory, gpu: Gpu, batch: int, tokens: int) -> float:
    """Seconds of one decoding pass of `batch` requests that hold `tokens` tokens each."""
    moved = shape.streamed_bytes + batch * tokens * memory.kv_per_token
    return max(moved / gpu.bandwidth, 2 * shape.num_parameters * batch / gpu.flops)


def fit(shape: ModelShape, memory: Memory, gpu: Gpu, load: Load, max_num_seqs: int = 256) -> Fit:
    """Memory, speed and throughput of the model on one card."""
    room = int(GPU_SHARE * gpu.memory_mib * MIB) - memory.fixed
    tokens = max(0, room // memory.kv_per_token)
    concurrency = tokens / load.context
    batch = max(1, min(max_num_seqs, int(concurrency)))
    prefill = 2 * shape.num_parameters * load.prompt_tokens / gpu.flops
    passes = load.answer_tokens / load.tokens_per_pass
    alone = step_seconds(shape, memory, gpu, 1, load.mean_tokens)
    batched = step_seconds(shape, memory, gpu, batch, load.mean_tokens)
    return Fit(
        gpu=gpu,
        fits=tokens >= load.context,
        kv_tokens=tokens,
        max_concurrency=concurrency,
        batch=batch,
        time_per_token_alone=alone / load.tokens_per_pass,
        time_per_token=batched / load.tokens_per_pass,
        answer_seconds=prefill + passes * alone,
        answers_per_second=batch / (batch * prefill + passes * batched),
        largest_context=min(tokens, shape.max_context),
    )
