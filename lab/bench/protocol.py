"""The messages between the harness and an engine's process: one JSON object on each line.

Every engine's environment imports this module, so it needs pydantic only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from pydantic import TypeAdapter

from serving.constraints import Constraint


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Args:
        key: unique within its batch.
        prompt: token ids.
        max_tokens: limit of the answer's tokens.
        min_tokens: how many tokens come before an end token may.
        constraint: what the answer must match; None for free text.
        at: arrival time in seconds after the start of the batch; None: as soon as a user is free.
        adapter: name of the engine's adapter; None for the plain model.
    """

    key: str
    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    constraint: Constraint | None = None
    at: float | None = None
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request. Times are in seconds since its arrival, measured outside the engine."""

    key: str
    ttft: float | None
    e2e: float
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    text: str = ""
    finish: str = ""
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one measurement, and the number of concurrent users."""

    asks: tuple[Ask, ...]
    concurrency: int


@dataclass(frozen=True, slots=True)
class Done:
    """The replies to a batch, in the order of its requests."""

    replies: tuple[Reply, ...]
    wall: float
    cpu: float  # seconds of the engine's main process
    steps: dict[str, float] = field(default_factory=dict)  # seconds of our engine's steps, by part


ASK: Final = TypeAdapter(Ask)
BATCH: Final = TypeAdapter(Batch)
DONE: Final = TypeAdapter(Done)


def arrival_times(count: int, rate: float) -> list[float]:
    """Seconds at which requests arrive in a Poisson process of `rate` requests a second; always the same ones."""
    rng = random.Random(f"arrivals {rate:g}")
    return list(accumulate(rng.expovariate(rate) for _ in range(count)))


def at_rate(asks: Sequence[Ask], rate: float) -> tuple[Ask, ...]:
    """The same requests with Poisson arrivals at `rate` requests a second, like those of many independent users."""
    times = arrival_times(len(asks), rate)
    return tuple(replace(ask, at=time) for ask, time in zip(asks, times, strict=True))
