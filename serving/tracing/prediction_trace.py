"""What the trace of a prediction is told."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from serving.types import RequestMetrics


class PredictionTrace:
    """The trace of one prediction, entered while it runs; this one records nothing.

    Leaving it says that the prediction ended, and its error.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the trace."""

    def prepared(self) -> None:
        """Note that the inputs are checked and the prompt is made; the engine is asked next."""

    def generated(self, metrics: RequestMetrics) -> None:
        """Note that the engine has answered, and what that cost."""
