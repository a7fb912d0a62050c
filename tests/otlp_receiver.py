"""A collector of traces: receives OTLP over HTTP and keeps the spans.

with OtlpReceiver() as receiver: …; receiver.wait_for("prediction")
"""

from __future__ import annotations

import gzip
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

NO_PARENT = ""


@dataclass(frozen=True)
class Received:
    """A span; ids are hexadecimal."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    is_error: bool
    attributes: dict[str, Any]
    events: list[dict[str, Any]]


class OtlpReceiver:
    """Listens while it is entered."""

    def __enter__(self) -> Self:
        self.spans: list[Received] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for(self, *names: str, seconds: float = 60) -> list[Received]:
        """All spans, once there is one of each name."""
        deadline = time.monotonic() + seconds
        while missing := set(names) - {span.name for span in self.spans}:
            assert time.monotonic() < deadline, f"no span {missing} among {[span.name for span in self.spans]}"
            time.sleep(0.05)
        return list(self.spans)

    def named(self, name: str) -> Received:
        """The one span of this name."""
        [span] = [span for span in self.spans if span.name == name]
        return span


def _spans(request: ExportTraceServiceRequest) -> list[Received]:
    return [
        Received(
            _values(resource.resource.attributes)["service.name"],
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.status.code == span.status.STATUS_CODE_ERROR,
            _values(span.attributes),
            [_values(event.attributes) for event in span.events],
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
