"""Makes the spans of HTTP requests and of predictions, and sends them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.request_log import METHODS, QUIET
from gateway.predictions.live_prediction import LivePrediction, PredictionTrace
from gateway.predictions.prediction import Prediction, Status

_NAME: Final = "gateway"
_EXPORT_SECONDS: Final = 3.0  # when the gateway stops and the collector is silent, it waits for this twice
_PATH: Final = "/predictions/{prediction_id}"
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Tracing:
    """The tracing of one gateway; its spans are sent in batches by a thread, and dropped where too many wait."""

    def __init__(self) -> None:
        timeout = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _EXPORT_SECONDS
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: _NAME}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)))
        self.tracer = self._provider.get_tracer(_NAME)

    def trace_requests(self, app: FastAPI) -> None:
        """Trace all requests of an application; to be called after all other middleware was added."""
        app.add_middleware(ServerSpans, tracer=self.tracer)

    def follow(self, live: LivePrediction) -> None:
        """Trace a new prediction, as a part of the request that is being answered."""
        live.trace = PredictionSpans(self.tracer, live.id)

    async def close(self) -> None:
        """Send the spans that are left."""
        await asyncio.to_thread(self._provider.shutdown)


class ServerSpans:
    """ASGI middleware: traces requests, below the caller's span if it sends a `traceparent`."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on; its span ends with its response."""
        if scope["type"] != "http" or scope["path"].startswith(QUIET):
            await self._app(scope, receive, send)
            return
        method, status = scope["method"] if scope["method"] in METHODS else "_OTHER", 500
        parent = _PROPAGATOR.extract(Headers(scope=scope))

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._tracer.start_as_current_span(
            method, parent, SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            scope["gateway_trace_id"] = format_trace_id(span.get_span_context().trace_id)  # for the log
            try:
                await self._app(scope, receive, note)
            finally:
                _describe(span, scope, method, status)


def _describe(span: Span, scope: Scope, method: str, status: int) -> None:
    """Name the span and its request. The query is left out, and so are headers: keys may be in both."""
    attributes: dict[str, str | int] = {
        "http.request.method": method,
        "http.response.status_code": status,
        "url.scheme": scope["scheme"],
        "url.path": scope["path"][:200],
        "network.protocol.version": scope["http_version"],
    }
    if scope.get("server"):
        attributes["server.address"], attributes["server.port"] = scope["server"][0], scope["server"][1] or 0
    if (route := getattr(scope.get("route"), "path", None)) is not None:
        attributes["http.route"] = route
        span.update_name(f"{method} {route}")
    span.set_attributes(attributes)
    if status >= 500:
        fail(span, scope.get("gateway_error") or str(status))


class PredictionSpans(PredictionTrace):
    """The spans of one prediction: the whole, its waits for a server, and each server that was asked.

    They are below the current span, which is that of the HTTP request.
    """

    def __init__(self, tracer: Tracer, prediction_id: str) -> None:
        self._tracer = tracer
        self._span = tracer.start_span("prediction", attributes={"gateway.prediction.id": prediction_id})
        self._inside = set_span_in_context(self._span)
        self._waits_since: int | None = time.time_ns()
        self.trace_id = format_trace_id(self._span.get_span_context().trace_id)

    @contextmanager
    def asking(self, address: str) -> Iterator[Mapping[str, str]]:
        """See `PredictionTrace.asking`."""
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
        """See `PredictionTrace.end`."""
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
    """What OpenTelemetry's conventions want of an HTTP client, without the address, which may hold a password."""
    url = urlsplit(address)
    port = url.port or (443 if url.scheme == "https" else 80)
    names = {"http.request.method": "PUT", "url.template": _PATH, "server.address": url.hostname or ""}
    return {**names, "server.port": port}
