"""What the harness and an engine's process say to each other: one JSON object a line.

Owns: the words. Knows nothing of processes or engines. Standard library only, because it is read in
every engine's own environment.

    Batch((Ask("1", (1, 2), 64),), concurrency=1).to_line()
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Args:
        key: unique within its batch.
        prompt: token ids.
        max_tokens: limit of the answer.
        grammar: in the dialect of the engine that gets it; None is free text.
        at: seconds after the batch began at which it arrives; None comes when a user is free.
    """

    key: str
    prompt: tuple[int, ...]
    max_tokens: int
    grammar: str | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of it. Times in seconds since it arrived, seen from outside the engine."""

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
    """Requests that belong to one measurement, for so many users at once."""

    asks: tuple[Ask, ...]
    concurrency: int

    def to_line(self) -> str:
        """As one line."""
        return json.dumps({"op": "run", **asdict(self)})

    @staticmethod
    def from_json(message: dict[str, Any]) -> Batch:
        """What `to_line` wrote."""
        asks = (Ask(**{**ask, "prompt": tuple(ask["prompt"])}) for ask in message["asks"])
        return Batch(tuple(asks), message["concurrency"])


@dataclass(frozen=True, slots=True)
class Done:
    """A batch's replies, in the order asked."""

    replies: tuple[Reply, ...]
    wall: float
    cpu: float  # seconds of the engine's main process
    steps: dict[str, float] = field(default_factory=dict)  # seconds of our engine's steps, by part

    @staticmethod
    def from_json(message: dict[str, Any]) -> Done:
        """What a worker wrote."""
        replies = tuple(Reply(**reply) for reply in message["replies"])
        return Done(replies, message["wall"], message["cpu"], message["steps"])
