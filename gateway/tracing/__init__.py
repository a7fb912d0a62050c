"""Sends spans of requests and predictions as OTLP over HTTP, where an endpoint is set.

Without one, OpenTelemetry is not even imported. Its SDK reads its own settings, the environment variables OTEL_….
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.tracing.spans import Tracing

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def open_tracing() -> Tracing | None:
    """The tracing that the environment asks for; None without an endpoint."""
    if not any(map(os.environ.get, _ENDPOINTS)):
        return None
    from gateway.tracing.spans import Tracing

    return Tracing()
