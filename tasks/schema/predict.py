"""The Predictor that Cog runs: takes a text and streams JSON that follows the schema in task.json.

Cog reads the signature of `predict` without running it, so every `Input` is a literal. After changing one, run
scripts/write_schema. The text inputs are listed under `inputs` in task.json, beside the weights.
"""

from __future__ import annotations

import cog
from cog import ConcatenateIterator, Input

from serving.predictor import TaskPredictor


class Predictor(TaskPredictor):
    """Answers in JSON with the model of weights.lock."""

    @cog.streaming  # type: ignore[untyped-decorator]
    async def predict(
        self,
        text: str = Input(description="The text that the answer is made from."),
        max_tokens: int | None = Input(
            default=None, ge=1, description="Maximum tokens of the answer; an answer that needs more is an error."
        ),
        temperature: float = Input(default=0.0, ge=0, description="0 always takes the likeliest token."),
        seed: int | None = Input(default=None, ge=0, description="The same seed gives the same answer."),
        adapter: str | None = Input(
            default=None, description="Name of a fine-tune of this model that the server has; by default none."
        ),
    ) -> ConcatenateIterator[str]:
        """Stream the answer, as JSON text, in pieces."""
        return self.answer(
            text=text,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            adapter=adapter,
        )
