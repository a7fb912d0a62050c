"""What the trace of a prediction is told while the prediction runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from serving.types import RequestMetrics


class PredictionTrace:
    """The trace of one prediction, entered while it runs. This one records nothing; see `serving/engine_spans.py`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The prediction has ended, perhaps with an error."""

    def prepared(self) -> None:
        """The inputs are checked and the prompt is made; the engine is asked next."""

    def generated(self, metrics: RequestMetrics) -> None:
        """The engine has answered."""
