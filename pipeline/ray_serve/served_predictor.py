"""Answers a prediction with the package's Predictor, as the events that Cog's server would send."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from pipeline.package.local_prediction import LocalPredictor
from serving.errors import EngineDeadError, ServingError
from tasks.errors import TaskError

Event = tuple[str, dict[str, Any]]
"""Its name and what it carries, see `gateway.upstream.UpstreamEvent`."""


class ServedPredictor(LocalPredictor):
    """The package's Predictor, which also keeps its notes.

    Args:
        replica: its name, which is a metric of its predictions.
    """

    def __init__(self, replica: str) -> None:
        super().__init__()
        self._replica = replica
        self.notes: list[str] = []

    def add_note(self, note: str) -> None:
        """Keep it for the prediction's logs."""
        self.notes.append(note)

    async def events(self, inputs: Mapping[str, Any], trace_context: Mapping[str, str]) -> AsyncGenerator[Event]:
        """What one prediction produces; the last event is `completed`.

        Args:
            inputs: of `predict`, checked, with defaults filled in.
            trace_context: W3C's `traceparent`, or nothing.

        Raises:
            EngineDeadError: the engine died, so another one may answer.
        """
        prediction = copy.copy(self)  # the same model, with metrics and notes of its own
        prediction.metrics, prediction.notes = {"replica": self._replica}, []
        started, error = time.monotonic(), None
        try:
            with self.begin_trace(trace_context) as trace:
                async with aclosing(prediction._answer(inputs, trace)) as pieces:
                    async for piece in pieces:
                        yield "output", {"chunk": piece}
        except EngineDeadError:
            raise
        except (ServingError, TaskError) as problem:
            error = str(problem)
            prediction.record_metric("error_type", type(problem).__name__)
        except Exception as problem:  # as under Cog, whatever is wrong with one prediction must not stop the others
            error = f"internal error: {problem!r}"
        for note in prediction.notes:
            yield "log", {"data": f"{note}\n"}
        prediction.record_metric("predict_time", time.monotonic() - started)
        status = {"status": "succeeded"} if error is None else {"status": "failed", "error": error}
        yield "completed", {**status, "metrics": prediction.metrics}
