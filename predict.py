"""What Cog runs: a question and column names in, a Honeycomb query out, streamed.

Owns: the inputs that users see, and how the parts fit together. Knows nothing of how an engine
works. Cog reads the signature of `predict` without running it, so its `Input`s are literal;
`scripts/write_schema` writes what Cog reads there to `.cog/openapi_schema.json`.

    scripts/predict -i nlq="slowest traces" -i cols="['name', 'duration_ms']"
"""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import cog
from cog import BasePredictor, ConcatenateIterator, Input

from honeycomb.columns import parse_columns
from honeycomb.errors import QueryError
from honeycomb.grammar import build_grammar
from honeycomb.live import LiveAnswer
from honeycomb.profile import Profile
from honeycomb.prompt import build_prompt, check_nlq
from serving.cog_streaming import stream
from serving.config import Settings
from serving.engine import create_engine
from serving.errors import ContextLengthError, InvalidRequestError
from serving.text import Tokenizer
from serving.types import FinishReason, GenerationOutput, GenerationRequest, RequestMetrics, SamplingParams
from serving.weights import verify

HEALTH_SECONDS = 4.0  # Cog itself stops waiting after 5


class Predictor(BasePredictor):  # type: ignore[misc]  # Cog has no type information
    """One model behind one engine; predictions run concurrently."""

    def setup(self) -> None:
        """Load the model, once its files are found to be those of the lock."""
        settings = Settings()
        verify(settings.weights_dir, settings.weights_lock)
        self.profile = Profile.load(settings.weights_dir / "profile.json")
        self.tokenizer = Tokenizer.from_dir(settings.weights_dir)
        self.engine = create_engine(settings)
        gc.freeze()  # or a collection of 300,000 objects that stay halts all answers for 70 ms now and then

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
        seed: int | None = Input(
            default=None, ge=0, description="Seed for sampling. Answers are greedy, so it changes nothing."
        ),
    ) -> ConcatenateIterator[str]:
        """The query as JSON, in pieces that join to the whole."""
        # JSON schema takes 1.0 for an integer, and Cog hands it on as a float.
        sampling = SamplingParams(max_tokens=int(max_tokens), seed=None if seed is None else int(seed))
        return stream(self._answer(nlq, cols, sampling))

    async def healthcheck(self) -> bool:
        """Whether the engine generates a token in time; its error says why not."""
        await self.engine.health(timeout=HEALTH_SECONDS)
        return True

    async def _answer(self, nlq: str, cols: str, sampling: SamplingParams) -> AsyncGenerator[str]:
        """Check the input, generate, show what is safe to show, check the whole, show the rest."""
        question, columns = check_nlq(nlq), parse_columns(cols)
        # In a thread: a long prompt takes milliseconds, in which no other answer would stream.
        request = await asyncio.to_thread(self._request, question, columns, sampling)
        answer = LiveAnswer(self.profile.surface)
        output = GenerationOutput("", ())
        async with aclosing(self.engine.generate(request)) as outputs:
            try:
                async for output in outputs:
                    if shown := answer.push(output.text):
                        yield shown
            except ContextLengthError as error:
                raise ContextLengthError(f"nlq and cols: {error}; give fewer columns") from error
        assert output.metrics is not None, "an engine's last delta has metrics"
        self._record(output.metrics)
        try:
            yield answer.finish(columns)
        except QueryError as error:
            if output.finish_reason is FinishReason.LENGTH:
                raise self._cut_short(output.metrics, sampling.max_tokens) from error
            raise
        for repair in answer.repairs:
            print(f"mended: {repair}")  # Cog puts what is printed into this prediction's logs

    def _request(self, nlq: str, columns: Sequence[str], sampling: SamplingParams) -> GenerationRequest:
        prompt = build_prompt(nlq, columns, self.profile.prompt)
        return GenerationRequest(
            request_id=uuid.uuid4().hex,
            prompt_token_ids=tuple(self.tokenizer.encode(prompt)),
            sampling=sampling,
            grammar=build_grammar(columns, self.profile.surface),
        )

    def _record(self, metrics: RequestMetrics) -> None:
        """Tell Cog; these two counts are what Replicate shows for language models."""
        self.record_metric("input_token_count", metrics.input_token_count)
        self.record_metric("output_token_count", metrics.output_token_count)
        self.record_metric("model_passes", metrics.model_passes)
        self.record_metric("tokens_per_second", metrics.tokens_per_second)
        if metrics.time_to_first_token is not None:
            self.record_metric("time_to_first_token", metrics.time_to_first_token)

    def _cut_short(self, metrics: RequestMetrics, max_tokens: int) -> InvalidRequestError:
        written = f"{metrics.output_token_count} tokens"
        if metrics.output_token_count >= max_tokens:
            return InvalidRequestError(f"max_tokens: the query was not complete after {written}; give more")
        full = f"the model's context of {self.engine.max_model_len} tokens is full"
        return ContextLengthError(f"nlq and cols: {full} after {written} of the answer; give fewer columns")
