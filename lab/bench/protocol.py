"""The messages between the harness and an engine's process: one JSON object on each line.

It uses the standard library only, because it is imported in every engine's environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Program(StrEnum):
    """The program of an engine's process."""

    SERVING = "serving"  # an engine of `serving`
    LLAMA = "llama"
    TRANSFORMERS = "transformers"


class Dialect(StrEnum):
    """The grammar dialect of an engine."""

    LARK = "lark"  # llguidance's: ours and vLLM's
    GBNF = "gbnf"  # llama.cpp's
    NONE = "none"  # plain transformers


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Args:
        key: unique within its batch.
        prompt: token ids.
        max_tokens: limit of the answer's tokens.
        constraint: from `constraint_json`, in the engine's dialect; None for free text.
        at: arrival time in seconds after the start of the batch; None: as soon as a user is free.
        adapter: name of the engine's adapter; None for the plain model.
    """

    key: str
    prompt: tuple[int, ...]
    max_tokens: int
    constraint: Mapping[str, Any] | None = None
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

    def to_line(self) -> str:
        """The batch as one line of JSON."""
        return json.dumps({"op": "run", **asdict(self)})

    @staticmethod
    def from_json(message: dict[str, Any]) -> Batch:
        """The batch that `to_line` wrote."""
        asks = (Ask(**{**ask, "prompt": tuple(ask["prompt"])}) for ask in message["asks"])
        return Batch(tuple(asks), message["concurrency"])


@dataclass(frozen=True, slots=True)
class Done:
    """The replies to a batch, in the order of its requests."""

    replies: tuple[Reply, ...]
    wall: float
    cpu: float  # seconds of the engine's main process
    steps: dict[str, float] = field(default_factory=dict)  # seconds of our engine's steps, by part

    @staticmethod
    def from_json(message: dict[str, Any]) -> Done:
        """The message of a worker."""
        replies = tuple(Reply(**reply) for reply in message["replies"])
        return Done(replies, message["wall"], message["cpu"], message["steps"])
