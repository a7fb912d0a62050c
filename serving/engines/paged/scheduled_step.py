"""What the scheduler says about one step, and about its results."""

from __future__ import annotations

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
