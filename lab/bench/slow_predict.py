"""What Cog runs where the gateway's benchmark asks several servers: a model that only takes time."""

from __future__ import annotations

import asyncio
import os

from cog import BasePredictor, Input


class SlowPredictor(BasePredictor):  # type: ignore[misc]  # Cog has no type information
    """A predictor whose every answer takes PREDICT_SECONDS, however many are computed."""

    def setup(self) -> None:
        """Read how long an answer takes."""
        self._seconds = float(os.environ["PREDICT_SECONDS"])

    async def predict(self, nlq: str = Input(), cols: str = Input()) -> str:
        """The question, late. The inputs are those of predict.py, whose schema Cog finds in this folder."""
        await asyncio.sleep(self._seconds)
        return nlq
