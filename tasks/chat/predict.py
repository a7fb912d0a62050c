"""The Predictor that Cog runs: takes messages or a prompt and streams the answer's text.

Cog reads the signature of `predict` without running it, so every `Input` is a literal. After changing one, run
scripts/write_schema. The defaults of inputs that are None are in task.json, beside the weights.
"""

from __future__ import annotations

from typing import Annotated, Any

import cog
from cog import ConcatenateIterator, Input

from serving.predictor import TaskPredictor


class Predictor(TaskPredictor):
    """Answers with the model of weights.lock, as a chat."""

    @cog.streaming  # type: ignore[untyped-decorator]
    async def predict(
        self,
        prompt: str = Input(default="", description="The user's message; or give messages."),
        messages: Annotated[list[dict[str, Any]], cog.Opaque] = Input(
            default=[], description="A conversation: objects with role and content, as in OpenAI's API."
        ),
        system_prompt: str | None = Input(
            default=None, description="How the model should behave; by default the chat template decides."
        ),
        max_tokens: int | None = Input(default=None, ge=1, description="Maximum tokens of the answer."),
        min_tokens: int | None = Input(default=None, ge=0, description="Minimum tokens of the answer."),
        temperature: float | None = Input(default=None, ge=0, description="0 always takes the likeliest token."),
        top_p: float | None = Input(
            default=None, ge=0, le=1, description="Sample from the likeliest tokens with this total probability."
        ),
        top_k: int | None = Input(default=None, ge=0, description="Sample from this many likeliest tokens; 0: all."),
        min_p: float | None = Input(
            default=None,
            ge=0,
            le=1,
            description="Exclude tokens less likely than this fraction of the likeliest token's probability.",
        ),
        repetition_penalty: float | None = Input(
            default=None, ge=0.01, le=10, description="Above 1, tokens of prompt and answer become less likely."
        ),
        presence_penalty: float | None = Input(
            default=None, ge=-2, le=2, description="Above 0, tokens already in the answer become less likely."
        ),
        frequency_penalty: float | None = Input(
            default=None,
            ge=-2,
            le=2,
            description="Above 0, tokens become less likely each time they occur in the answer.",
        ),
        stop_sequences: list[str] | str | None = Input(
            default=None, description="Texts that end the answer: a list, or one text separated by commas."
        ),
        seed: int | None = Input(default=None, ge=0, description="The same seed gives the same answer; 0 is a seed."),
        json_schema: dict[str, Any] | None = Input(
            default=None, description="A JSON Schema that the answer follows; or OpenAI's response_format."
        ),
        tools: Annotated[list[dict[str, Any]], cog.Opaque] = Input(
            default=[],
            description="Functions that the model may call, as in OpenAI's API; a call is a line of the answer.",
        ),
        parallel_tool_calls: bool = Input(
            default=True, description="Whether the model may call several tools in one answer."
        ),
        documents: Annotated[list[dict[str, Any]], cog.Opaque] = Input(
            default=[], description="Texts for the model: objects with title and text, if its template supports them."
        ),
        chat_template_kwargs: dict[str, Any] | None = Input(
            default=None, description="More variables for the chat template."
        ),
        add_generation_prompt: bool = Input(
            default=True, description="Whether the prompt ends where the model's answer begins."
        ),
        logprobs: int | None = Input(
            default=None,
            ge=0,
            le=20,
            description="Adds each token's log probability to the metrics, and those of this many likeliest tokens.",
        ),
        adapter: str | None = Input(
            default=None, description="Name of a fine-tune of this model that the server has; by default none."
        ),
    ) -> ConcatenateIterator[str]:
        """Stream the answer in pieces."""
        return self.answer(
            prompt=prompt,
            messages=messages,
            system_prompt=system_prompt,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            stop_sequences=stop_sequences,
            seed=seed,
            json_schema=json_schema,
            tools=tools,
            parallel_tool_calls=parallel_tool_calls,
            documents=documents,
            chat_template_kwargs=chat_template_kwargs,
            add_generation_prompt=add_generation_prompt,
            logprobs=logprobs,
            adapter=adapter,
        )
