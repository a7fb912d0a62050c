"""What every package's predict.py has in common: a model that Cog asks. Nothing deeper knows Cog."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from typing import Any

from cog import BasePredictor, current_scope

from serving.cog_streaming import stream
from serving.config import Settings
from serving.errors import ServingError
from serving.model import Model
from tasks.errors import TaskError

HEALTH_SECONDS = 3.0  # Cog itself stops waiting after 5, the gateway after 3.8


class TaskPredictor(BasePredictor):  # type: ignore[misc]  # Cog has no type information
    """One model; predictions run concurrently.

    A subclass has a `predict` whose parameters Cog reads, and returns `self.answer(**inputs)` from it.
    """

    def setup(self) -> None:
        """Load the model of the settings, once its files are found to be those of the lock."""
        self.model = Model.load(Settings())

    async def healthcheck(self) -> bool:
        """Whether the engine generates a token in time; its error says why not."""
        await self.model.engine.health(timeout=HEALTH_SECONDS)
        return True

    def answer(self, **inputs: Any) -> Generator[str]:
        """The output of a prediction in pieces; to be returned from an `async def predict`."""
        return stream(self._answer(inputs))

    async def _answer(self, inputs: Mapping[str, Any]) -> AsyncGenerator[str]:
        """The pieces; metrics go to Cog, and notes where Cog reads a prediction's logs, which is what is printed."""
        answer = self.model.ask(inputs, current_scope().context)
        try:
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    yield piece
        except (ServingError, TaskError) as error:
            answer.metrics["error_type"] = type(error).__name__  # Cog passes on only the error's text
            raise
        finally:
            for name, value in answer.metrics.items():
                self.record_metric(name, value)
            for note in answer.notes:
                print(note)
