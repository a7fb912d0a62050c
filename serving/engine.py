"""The seam: what every engine promises, and the one place that imports one.

Owns: the `Engine` protocol and `create_engine`. Knows nothing of how an engine works. A new
engine is one file with a `create(settings)` function and one line in `_MODULES`.

    engine = create_engine(Settings(engine="paged"))
    async for delta in engine.generate(request): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from serving.types import EngineStats, GenerationOutput, GenerationRequest


class Engine(Protocol):
    """Continues token ids. Safe to use from any number of coroutines and event loops."""

    @property
    def name(self) -> str:
        """As `create_engine` knows it."""
        ...

    @property
    def max_model_len(self) -> int:
        """Prompt and output tokens that fit one request."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationOutput]:
        """Stream deltas; the last has a finish reason and metrics.

        Closing the iterator (`aclose`, or cancelling the task that reads it) aborts the request
        and frees all it held.

        Raises (at the first `__anext__`):
            InvalidRequestError: and its subclasses; nothing was queued.
            EngineBusyError: the queue is full; said at once.
            EngineDeadError: the engine is gone, now or in the middle.
        """
        ...

    async def health(self, timeout: float = 5.0) -> None:
        """Generate one token within `timeout` seconds.

        Raises:
            EngineDeadError: it did not come.
        """
        ...

    def stats(self) -> EngineStats:
        """A snapshot of the counters."""
        ...

    def close(self) -> None:
        """End every request with EngineDeadError, stop threads and processes. May be called twice."""
        ...
