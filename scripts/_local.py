"""A prediction in this process, as Cog's server would run it.

Owns: the event loop, metrics, logs and outcome of one prediction without a server. Knows nothing
of command lines. The Predictor is the one that Cog loads.

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
    """What Cog answers for a prediction; `cause` is the error itself."""

    id: str
    status: str = "processing"
    output: list[str] = field(default_factory=list)
    logs: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    cause: Exception | None = None

    def to_json(self) -> dict[str, Any]:
        """As the server writes it: no error where there is none."""
        return {key: value for key, value in asdict(self).items() if key != "cause" and value is not None}


class LocalPredictor(Predictor):
    """Predictor with metrics kept here: outside its server Cog drops them."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def record_metric(self, key: str, value: Any, mode: str = "replace") -> None:
        self.metrics[key] = value


def predict_locally(inputs: dict[str, Any]) -> Prediction:
    """Set up, predict once, and close the engine.

    Raises:
        Exception: what `setup` raises; errors of the prediction itself are in what is returned.
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
            predictor.engine.close()
    prediction.metrics["predict_time"] = time.monotonic() - started
    prediction.logs = logs.getvalue()
    return prediction


@contextlib.contextmanager
def _event_loop() -> Generator[asyncio.AbstractEventLoop]:
    """A running loop in a thread of its own, as Cog's worker has one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="predictions", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
