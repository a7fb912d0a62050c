"""What a prediction tells the gateway's tracing; without tracing, nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from gateway.predictions import Prediction


class RunTrace:
    """The trace of one prediction. This one records nothing; `gateway/tracing` has the one that does."""

    trace_id: str | None = None

    def asking(self, address: str) -> AbstractContextManager[Mapping[str, str]]:
        """Entered while a server is asked; gives the trace context to send to it, W3C's `traceparent`, or nothing."""
        return nullcontext({})

    def end(self, prediction: Prediction) -> None:
        """The prediction has ended."""
