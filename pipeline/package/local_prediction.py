"""Runs one prediction in this process, with the Predictor that Cog loads.

prediction = predict_locally({"nlq": "…", "cols": "…", "max_tokens": 512, "seed": None})
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
import time
import uuid
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from typing import Any

from predict import Predictor


@dataclass
class Prediction:
    """The fields of Cog's response to a prediction; `cause` is the exception of a failed one."""

    id: str
    status: str = "processing"
    output: list[str] = field(default_factory=list)
    logs: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    cause: Exception | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON object that the server would send; `error` is left out unless the prediction failed."""
        return {key: value for key, value in asdict(self).items() if key != "cause" and value is not None}


class LocalPredictor(Predictor):
    """A Predictor that keeps its metrics: outside its server Cog discards them."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def record_metric(self, key: str, value: Any, mode: str = "replace") -> None:
        """Keep a metric; every mode replaces the value."""
        self.metrics[key] = value


def predict_locally(inputs: dict[str, Any]) -> Prediction:
    """Set up, predict once, and close the engine.

    Raises:
        Exception: whatever `setup` raises. Errors of the prediction itself are in the returned Prediction.
    """
    predictor = LocalPredictor()
    prediction = Prediction(id=f"local_{uuid.uuid4().hex[:16]}", metrics=predictor.metrics)
    logs = io.StringIO()
    with contextlib.redirect_stdout(logs):
        predictor.setup()
        started = time.monotonic()
        try:
            with _event_loop() as loop:
                chunks = asyncio.run_coroutine_threadsafe(predictor.predict(**inputs), loop).result()
                prediction.output.extend(chunks)
            prediction.status = "succeeded"
        except Exception as error:
            prediction.status, prediction.error, prediction.cause = "failed", str(error), error
        finally:
            predictor.model.close()
    prediction.metrics["predict_time"] = time.monotonic() - started
    prediction.logs = logs.getvalue()
    return prediction


@contextlib.contextmanager
def _event_loop() -> Generator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a separate thread, as in Cog's worker."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="predictions", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
