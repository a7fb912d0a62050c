"""Writes the gateway's log, a line of JSON for each request and each prediction that ended, and counts requests.

No key is logged, and no input: not even an error's text, which may repeat one. GATEWAY_LOG_INPUTS=true adds both.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics.meters import Meters
from gateway.predictions.live_prediction import LivePrediction
from gateway.predictions.prediction import seconds_between

_log = logging.getLogger(__name__)
QUIET: Final = ("/health", "/ready", "/metrics", "/static/")  # asked all the time; logged only when they fail
METHODS: Final = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_REQUEST_ID: Final = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_FIGURES: Final = (
    "input_token_count",
    "output_token_count",
    "model_passes",
    "time_to_first_token",
    "error_type",
    "cached",
)


@dataclass(slots=True)
class _RequestRecord:
    request_id: str
    prediction_ids: list[str] = field(default_factory=list)


# Ambient, because a prediction is created below handlers that know nothing of logs; nothing else may depend on it.
_current: ContextVar[_RequestRecord | None] = ContextVar("request_record", default=None)


class JsonFormatter(logging.Formatter):
    """Writes a record as a line of JSON; `extra={"fields": {…}}` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        time_text = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        content = {"time": time_text, "level": record.levelname.lower(), "message": record.getMessage()}
        content.update(getattr(record, "fields", {}))
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False, default=str)


def configure_logging() -> None:
    """Write the log of this process to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("gateway").setLevel(logging.INFO)


class RequestLog:
    """ASGI middleware: logs and counts each request, and answers its id as the header X-Request-Id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on; log and count it when its response is complete or has failed."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        record = _RequestRecord(given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8))
        token, start = _current.set(record), time.monotonic()
        status, answered = 500, None  # for an exception that nothing inside answers

        async def note(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], time.monotonic()
                MutableHeaders(scope=message)["X-Request-Id"] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            _current.reset(token)
            end = time.monotonic()
            meters: Meters = scope["app"].state.gateway.meters
            meters.count_request(
                api=api_of(scope),
                method=scope["method"] if scope["method"] in METHODS else "other",
                status=status,
                error=scope.get("gateway_error"),
                seconds=(end if answered is None else answered) - start,
            )
            if status >= 400 or not scope["path"].startswith(QUIET):
                _log.info("request", extra={"fields": _request_fields(scope, record, status, end - start)})


def api_of(scope: Scope) -> str:
    """The API that answered, by the module of its route: gateway.replicate.routes is `replicate`; else `none`."""
    parts = str(getattr(scope.get("endpoint"), "__module__", "")).split(".")
    return parts[1] if parts[0] == "gateway" and len(parts) > 1 else "none"


def _request_fields(scope: Scope, record: _RequestRecord, status: int, seconds: float) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {
        "request_id": record.request_id,
        "method": scope["method"],
        "path": scope["path"][:200],  # without the query
        "status": status,
        "seconds": round(seconds, 6),
    }
    if (asked := scope.get("path_params", {}).get("prediction_id")) is not None:
        record.prediction_ids.append(str(asked)[:100])
    if record.prediction_ids:
        fields["prediction_id"] = ",".join(record.prediction_ids)
    for name in ("caller", "trace_id"):
        if (value := scope.get(f"gateway_{name}")) is not None:
            fields[name] = value
    return fields


class PredictionLog:
    """Writes a line for each prediction that ended; to be called with each new prediction.

    Args:
        with_inputs: whether inputs and errors' texts are logged too.
    """

    def __init__(self, *, with_inputs: bool) -> None:
        self._with_inputs = with_inputs
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, live: LivePrediction) -> None:
        """Follow a new prediction to its end."""
        record = _current.get()
        if record is not None:
            record.prediction_ids.append(live.id)
        task = asyncio.create_task(self._follow(live, None if record is None else record.request_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, live: LivePrediction, request_id: str | None) -> None:
        prediction = await live.answered()
        if await live.settled() is not None:
            return  # its inputs were refused, which the request's line says
        fields: dict[str, JsonValue] = {
            "prediction_id": prediction.id,
            "request_id": request_id,
            "status": prediction.status.value,
            "seconds": seconds_between(prediction.created_at, prediction.completed_at or prediction.created_at),
            **{name: prediction.metrics[name] for name in _FIGURES if name in prediction.metrics},
        }
        if live.trace.trace_id is not None:
            fields["trace_id"] = live.trace.trace_id
        if self._with_inputs:
            fields.update(input=dict(prediction.input), error=prediction.error)
        _log.info("prediction", extra={"fields": fields})
