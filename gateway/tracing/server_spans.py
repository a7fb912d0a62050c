"""A span for each HTTP request, as ASGI middleware, with the names of OpenTelemetry's conventions for HTTP servers."""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import Span, SpanKind, Tracer, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics.request_counter import METHODS
from gateway.request_log import QUIET
from gateway.tracing.prediction_spans import fail

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class ServerSpans:
    """Traces what the application inside answers, below the caller's span if it sends a `traceparent`.

    Args:
        app: the application.
        tracer: makes the spans.
    """

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
