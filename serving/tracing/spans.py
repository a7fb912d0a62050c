"""Makes the spans of one prediction from its engine's metrics, so that the engine's thread spends no time on them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from serving.tracing.prediction_trace import PredictionTrace
from serving.types import RequestMetrics, TokenPass

MAX_EVENTS: Final = 64  # events of one span; an answer of more steps has several in each event
_EXPORT_SECONDS: Final = 3.0  # when the server stops and the collector is silent, it waits for this twice
_TIMEOUTS: Final = {"OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"}
_NAME: Final = "cog"  # as Cog's own tracing names the service


def open_tracer() -> Tracer:
    """The tracer of Cog's own tracing where that is on, else one that sends to the endpoint in the environment."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        timeout = None if _TIMEOUTS & os.environ.keys() else _EXPORT_SECONDS
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: _NAME}
        provider = TracerProvider(resource=Resource.create(named))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)))
    return provider.get_tracer("serving")


class PredictionSpans(PredictionTrace):
    """See `PredictionTrace`. No span has text of inputs or outputs.

    Args:
        tracer: makes the spans.
        trace_context: the trace context of the caller. Cog's own tracing, where it is on, has a span below the
            caller's, which is the current one here.
    """

    def __init__(self, tracer: Tracer, trace_context: Mapping[str, str]) -> None:
        self._tracer = tracer
        is_below_cog = trace.get_current_span().get_span_context().is_valid
        parent = None if is_below_cog else TraceContextTextMapPropagator().extract(trace_context)
        self._span = tracer.start_span("predict", parent)
        self._inside = set_span_in_context(self._span)
        self._at = time.time_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the prediction's span."""
        if error is not None:
            self._span.set_status(StatusCode.ERROR)
            self._span.set_attribute("error.type", type(error).__name__)  # not its text, which may repeat inputs
        self._span.end()

    def prepared(self) -> None:
        """See `PredictionTrace.prepared`."""
        began, self._at = self._at, time.time_ns()
        self._tracer.start_span("prepare", self._inside, start_time=began).end(self._at)

    def generated(self, metrics: RequestMetrics) -> None:
        """See `PredictionTrace.generated`."""
        first = metrics.time_to_first_token
        self._span.set_attribute("gen_ai.usage.input_tokens", metrics.input_token_count)
        self._span.set_attribute("gen_ai.usage.output_tokens", metrics.output_token_count)
        self._span.set_attribute("engine.model_passes", metrics.model_passes)
        waited = metrics.queue_time or 0.0
        if metrics.queue_time is not None:
            self._add("queue", 0.0, waited)
        if first is None:
            return
        cached = {"engine.cached_tokens": metrics.cached_token_count}
        self._add("prefill", waited, first, metrics.passes[:1], cached)
        if first < metrics.total_time and len(metrics.passes) != 1:
            self._add("decode", first, metrics.total_time, metrics.passes[1:])

    def _add(
        self,
        name: str,
        start: float,
        end: float,
        passes: Sequence[TokenPass] = (),
        attributes: Mapping[str, int] | None = None,
    ) -> None:
        """A span between two times in seconds since the engine was asked."""
        span = self._tracer.start_span(name, self._inside, attributes=attributes, start_time=self._time(start))
        size = -(-len(passes) // MAX_EVENTS) or 1
        for i in range(0, len(passes), size):
            self._add_event(span, passes[i : i + size])
        span.end(self._time(end))

    def _add_event(self, span: Span, passes: Sequence[TokenPass]) -> None:
        counts = {
            "steps": len(passes),
            "rows": sum(one.num_rows for one in passes),  # those of all requests in these steps
            "drafts": sum(len(one.drafted) for one in passes),
            "accepted": sum(one.num_accepted for one in passes),
            "tokens": sum(len(one.sources) for one in passes),
        }
        seconds = round(sum(one.seconds for one in passes), 6)
        span.add_event("step", {**counts, "seconds": seconds}, self._time(passes[-1].at))

    def _time(self, seconds: float) -> int:
        return self._at + round(seconds * 1e9)
