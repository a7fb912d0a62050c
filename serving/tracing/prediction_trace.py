"""What the trace of a prediction is told, and how one begins; where no endpoint for traces is set, it records nothing.

Without an endpoint OpenTelemetry is not imported, so the package also runs where it is not installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Protocol, Self

from serving.types import RequestMetrics

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class PredictionTrace(Protocol):
    """The trace of one prediction, entered while it runs. Leaving it says that the prediction ended, and its error."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def prepared(self) -> None:
        """Note that the inputs are checked and the prompt is made; the engine is asked next."""
        ...

    def generated(self, metrics: RequestMetrics) -> None:
        """Note that the engine has answered, and what that cost."""
        ...


class NoTrace:
    """A `PredictionTrace` that records nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing."""

    def prepared(self) -> None:
        """Do nothing."""

    def generated(self, metrics: RequestMetrics) -> None:
        """Do nothing."""


# Begins the trace of a prediction below the span that a trace context (W3C's `traceparent`) names, if it has one.
BeginTrace = Callable[[Mapping[str, str]], PredictionTrace]


def begin_nothing(trace_context: Mapping[str, str]) -> PredictionTrace:
    """A trace that records nothing."""
    return NoTrace()


def open_tracing() -> BeginTrace:
    """What begins traces, as the environment asks for them."""
    if not any(map(os.environ.get, _ENDPOINTS)):
        return begin_nothing
    try:
        from serving.tracing.spans import PredictionSpans, open_tracer
    except ImportError as error:
        print(f"no traces are sent, because OpenTelemetry does not import: {error}", file=sys.stderr)
        return begin_nothing
    tracer = open_tracer()
    return lambda trace_context: PredictionSpans(tracer, trace_context)
