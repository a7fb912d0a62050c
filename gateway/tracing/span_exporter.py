"""The gateway's tracer, and the thread that sends its spans."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from fastapi import FastAPI
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from gateway.runs import Run
from gateway.tracing.prediction_spans import PredictionSpans
from gateway.tracing.server_spans import ServerSpans

_NAME: Final = "gateway"
_EXPORT_SECONDS: Final = 3.0  # when the gateway stops and the collector is silent, it waits for this twice


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

    def follow(self, run: Run) -> None:
        """Trace a new run, as a part of the request that is being answered."""
        run.trace = PredictionSpans(self.tracer, run.id)

    async def close(self) -> None:
        """Send what is left."""
        await asyncio.to_thread(self._provider.shutdown)
