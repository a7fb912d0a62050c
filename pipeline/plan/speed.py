"""Lower bounds of decoding times on GPUs for rent, from bandwidth and arithmetic (Williams et al. 2009, "Roofline")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipeline.plan.memory_budget import GPU_SHARE, MAX_NUM_SEQS, MIB, Memory, ModelShape

PRICES_FROM: Final = "Replicate's public price list as of 2025, not checked since; give --price for today's"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card.

    Args:
        memory_mib: its memory as nvidia-smi shows it.
        bandwidth: the bandwidth of its memory, in bytes per second.
        flops: dense 16-bit tensor operations per second.
        price: dollars per second on Replicate; None if Replicate does not rent it.
        note: remark about 4-bit weights on this card.
    """

    name: str
    memory_mib: int
    bandwidth: float
    flops: float
    price: float | None = None
    note: str = ""


# Memory as nvidia-smi shows it, the rest from NVIDIA's data sheets (dense figures, without sparsity).
GPUS: Final = (
    Gpu("T4", 15_360, 320e9, 65e12, 0.000225, "no bfloat16 and no Marlin kernels: AWQ runs in float16, slower"),
    Gpu("L4", 23_034, 300e9, 121e12),
    Gpu("A10G", 23_028, 600e9, 70e12),
    Gpu("L40S", 46_068, 864e9, 362e12, 0.000975),
    Gpu("A100-40", 40_960, 1_555e9, 312e12),
    Gpu("A100-80", 81_920, 2_039e9, 312e12, 0.0014),
    Gpu("H100", 81_559, 3_350e9, 989e12, 0.001525),
    Gpu("H200", 143_771, 4_800e9, 989e12),
    Gpu("B200", 183_359, 8_000e9, 2_250e12),
)


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


def fit(shape: ModelShape, memory: Memory, gpu: Gpu, load: Load) -> Fit:
    """Memory, speed and throughput of the model on one card."""
    room = int(GPU_SHARE * gpu.memory_mib * MIB) - memory.fixed
    tokens = max(0, room // memory.kv_per_token)
    concurrency = tokens / load.context
    batch = max(1, min(MAX_NUM_SEQS, int(concurrency)))
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
