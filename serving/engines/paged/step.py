"""What one step of the engine computes for each request, what it gave, and how long its parts took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from serving.engines.paged.request import Request
from serving.types import FinishReason


@dataclass(slots=True)
class ScheduledRequest:
    """The part of a step for one request: `num_tokens` known tokens from position `start` on, then drafts."""

    request: Request
    start: int
    num_tokens: int
    draft_token_ids: list[int]

    @property
    def end(self) -> int:
        """Position after the last known token of this step."""
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        """Whether the step computes the last known token, so that it yields new ones."""
        return self.end == self.request.num_tokens


@dataclass(slots=True)
class SchedulerOutput:
    """The requests of one step. It is valid until the scheduler is called again."""

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    num_scheduled_tokens: int = 0  # including drafts

    @property
    def has_prompts(self) -> bool:
        """Whether it computes tokens of a prompt, or again those of a request that had to give its blocks away."""
        return any(item.num_tokens > 1 or item.start < item.request.num_prompt_tokens for item in self.scheduled)

    def add(self, item: ScheduledRequest) -> None:
        """Add a request to the step."""
        self.scheduled.append(item)
        self.num_scheduled_tokens += item.num_tokens


@dataclass(slots=True)
class RequestUpdate:
    """A request's new output tokens without the end token, and its finish reason; the rest as in `TokenPass`."""

    request: Request
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    sources: tuple[str, ...]
    drafted: tuple[str, ...]
    num_accepted: int


class StepClock:
    """The clock of one thread; other threads may read `seconds`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = 0.0

    def start(self) -> None:
        """Start to measure."""
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since `start` or the last lap to `name`."""
        now = time.perf_counter()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> dict[str, float]:
        """A copy of the seconds by name."""
        return self._seconds.copy()
