"""The spans of one prediction: the whole, its waits for a server, and each server that was asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.predictions import Prediction, Status
from gateway.run_trace import RunTrace

_PATH: Final = "/predictions/{prediction_id}"
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class PredictionSpans(RunTrace):
    """Starts with the prediction, below the current span, which is that of the HTTP request.

    Args:
        tracer: makes the spans.
        prediction_id: of the prediction.
    """

    def __init__(self, tracer: Tracer, prediction_id: str) -> None:
        self._tracer = tracer
        self._span = tracer.start_span("prediction", attributes={"gateway.prediction.id": prediction_id})
        self._inside = set_span_in_context(self._span)
        self._waits_since: int | None = time.time_ns()
        self.trace_id = format_trace_id(self._span.get_span_context().trace_id)

    @contextmanager
    def asking(self, address: str) -> Iterator[Mapping[str, str]]:
        """See `RunTrace.asking`."""
        self._end_wait()
        span = self._tracer.start_span(
            f"PUT {_PATH}", self._inside, SpanKind.CLIENT, attributes=_client_attributes(address)
        )
        context: dict[str, str] = {}
        _PROPAGATOR.inject(context, set_span_in_context(span))
        try:
            yield context
        except BaseException as error:
            self._waits_since = time.time_ns()
            fail(span, type(error).__name__)  # not its text, which may repeat inputs
            raise
        finally:
            span.end()

    def end(self, prediction: Prediction) -> None:
        """See `RunTrace.end`."""
        if prediction.started_at is None:  # else it waited no more
            self._end_wait()
        self._span.set_attribute("gateway.prediction.status", prediction.status.value)
        if prediction.status is Status.FAILED:
            fail(self._span, str(prediction.metrics.get("error_type", "failed"))[:60])
        self._span.end()

    def _end_wait(self) -> None:
        if self._waits_since is not None:
            self._tracer.start_span("wait for a server", self._inside, start_time=self._waits_since).end()
            self._waits_since = None


def fail(span: Span, error_type: str) -> None:
    """Mark a span as failed."""
    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", error_type)


def _client_attributes(address: str) -> dict[str, str | int]:
    """By OpenTelemetry's conventions for HTTP clients, without the address itself, which may hold a password."""
    url = urlsplit(address)
    port = url.port or (443 if url.scheme == "https" else 80)
    names = {"http.request.method": "PUT", "url.template": _PATH, "server.address": url.hostname or ""}
    return {**names, "server.port": port}
