"""What Cog runs: a question and column names in, a Honeycomb query out, streamed.

Cog reads the signature of `predict` without running it, so its `Input`s are literal. After a change to them
run scripts/write_schema.
"""

from __future__ import annotations

import cog
from cog import ConcatenateIterator, Input

from serving.predictor import TaskPredictor


class Predictor(TaskPredictor):
    """The model of weights.lock, asked for Honeycomb queries."""

    @cog.streaming  # type: ignore[untyped-decorator]
    async def predict(
        self,
        nlq: str = Input(description="The question, in plain English; at most 2,000 characters."),
        cols: str = Input(
            description="The columns that the query may use: a list ['a', 'b'], or names with commas between."
        ),
        max_tokens: int = Input(
            default=512, ge=1, le=2500, description="Tokens of the answer; one that is cut short is an error."
        ),
        adapter: str | None = Input(
            default=None, description="Name of a fine-tune of this model that the server has; by default none."
        ),
    ) -> ConcatenateIterator[str]:
        """The query as JSON, in pieces that join to the whole."""
        return self.answer(nlq=nlq, cols=cols, max_tokens=max_tokens, adapter=adapter)
