"""The traces of predictions, for OpenTelemetry.

Without an endpoint OpenTelemetry is not imported, so the package also runs where it is not installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

from serving.tracing.prediction_trace import PredictionTrace

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# Begins the trace of a prediction below the span that a trace context (W3C's `traceparent`) names, if it has one.
BeginTrace = Callable[[Mapping[str, str]], PredictionTrace]


def begin_nothing(trace_context: Mapping[str, str]) -> PredictionTrace:
    """A trace that records nothing."""
    return PredictionTrace()


def open_tracing() -> BeginTrace:
    """What begins traces, as the environment asks for them; without an endpoint for traces they record nothing."""
    if not any(map(os.environ.get, _ENDPOINTS)):
        return begin_nothing
    try:
        from serving.tracing.spans import PredictionSpans, open_tracer
    except ImportError as error:
        print(f"no traces are sent, because OpenTelemetry does not import: {error}", file=sys.stderr)
        return begin_nothing
    tracer = open_tracer()
    return lambda trace_context: PredictionSpans(tracer, trace_context)
