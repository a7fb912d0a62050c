"""What every package's predict.py has in common: one task in front of one engine."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

from cog import BasePredictor, current_scope

from serving.adapter_tasks import adapter_tasks
from serving.adapters.adapter_tokenizers import adapter_tokenizers
from serving.adapters.registry import read_registry
from serving.cog_streaming import stream
from serving.config import Settings
from serving.engine import create_engine
from serving.errors import ContextLengthError, InvalidRequestError, ServingError
from serving.logprob_metric import logprob_metric
from serving.prediction_trace import PredictionTrace
from serving.text import Tokenizer, context_length
from serving.token_trace import token_trace
from serving.tracing import BeginTrace, begin_nothing, open_tracing
from serving.types import FinishReason, GenerationOutput, GenerationRequest, RequestMetrics, TokenLogprob
from serving.weights import verify
from tasks.errors import OutputError, TaskError
from tasks.task import Prompt, Task, create_task

ADAPTER = "adapter"  # the input that names one; the engine's, not the task's
HEALTH_SECONDS = 3.0  # Cog itself stops waiting after 5, the door after 3.8


class TaskPredictor(BasePredictor):  # type: ignore[misc]  # Cog has no type information
    """One model behind one engine; predictions run concurrently.

    A subclass has a `predict` whose parameters Cog reads, and returns `self.answer(**inputs)` from it.
    """

    traces_tokens = False
    adapter_tasks: Mapping[str, Task] = MappingProxyType({})
    adapter_tokenizers: Mapping[str, Tokenizer] = MappingProxyType({})
    begin_trace: BeginTrace = staticmethod(begin_nothing)

    def setup(self) -> None:
        """Load the model, once its files are found to be those of the lock."""
        settings = Settings()
        verify(settings.weights_dir, settings.weights_lock)
        longest = settings.max_model_len or context_length(settings.weights_dir)
        self.tokenizer = Tokenizer.from_dir(settings.weights_dir, context_length=longest)
        self.task = create_task(settings.weights_dir, self.tokenizer)
        listed = {} if settings.adapters is None else read_registry(settings.adapters)
        self.adapter_tokenizers = adapter_tokenizers(listed, settings.weights_dir, self.tokenizer)
        self.adapter_tasks = adapter_tasks(listed, settings.weights_dir, self.tokenizer, self.adapter_tokenizers)
        self.engine = create_engine(settings)
        self.traces_tokens = settings.token_trace
        self.begin_trace = open_tracing()
        # A garbage collection would otherwise visit 300,000 objects that live as long as the server, which
        # stops all answers for 70 ms.
        gc.freeze()

    async def healthcheck(self) -> bool:
        """Whether the engine generates a token in time; its error says why not."""
        await self.engine.health(timeout=HEALTH_SECONDS)
        return True

    def answer(self, **inputs: Any) -> Generator[str]:
        """The output of a prediction in pieces; to be returned from an `async def predict`."""
        return stream(self._explained(inputs))

    async def _explained(self, inputs: Mapping[str, Any]) -> AsyncGenerator[str]:
        """`_answer`, traced, and with the kind of an error as a metric, because Cog passes on its text only."""
        with self.begin_trace(current_scope().context) as trace:
            async with aclosing(self._answer(inputs, trace)) as pieces:
                try:
                    async for piece in pieces:
                        yield piece
                except (ServingError, TaskError) as error:
                    self.record_metric("error_type", type(error).__name__)
                    raise

    async def _answer(self, inputs: Mapping[str, Any], trace: PredictionTrace) -> AsyncGenerator[str]:
        # In a thread: a long prompt takes milliseconds, in which no other answer would stream.
        prompt = await asyncio.to_thread(self.prepare, inputs)
        trace.prepared()
        async with aclosing(self.answer_prompt(prompt, inputs.get(ADAPTER) or None, trace)) as pieces:
            async for piece in pieces:
                yield piece

    def prepare(self, inputs: Mapping[str, Any]) -> Prompt:
        """The task's prompt for the inputs of one prediction.

        Raises:
            InputError: an input is wrong.
            ContextLengthError: the prompt is far too long.
        """
        task = self._task_of(inputs.get(ADAPTER) or None)
        try:
            return task.prepare({name: value for name, value in inputs.items() if name != ADAPTER})
        except ContextLengthError as error:
            raise _too_long(task, error) from error

    def _task_of(self, adapter: str | None) -> Task:
        return self.adapter_tasks.get(adapter, self.task) if adapter else self.task

    async def answer_prompt(self, prompt: Prompt, adapter: str | None, trace: PredictionTrace) -> AsyncGenerator[str]:
        """Generate, show what can no longer change, check the whole, show the rest.

        Args:
            prompt: of `prepare`.
            adapter: name of a LoRA adapter; None for the plain model.
            trace: is told when the engine has answered.

        Raises:
            ServingError, TaskError: there is no answer; the message says why.
        """
        task, tokenizer = self._task_of(adapter), self.adapter_tokenizers.get(adapter or "", self.tokenizer)
        output = GenerationOutput("", ())
        token_ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        async with aclosing(self.engine.generate(_request(prompt, adapter))) as outputs:
            try:
                async for output in outputs:
                    token_ids += output.token_ids
                    logprobs += output.logprobs
                    if shown := prompt.reader.push(output.text):
                        yield shown
            except ContextLengthError as error:
                raise _too_long(task, error) from error
        assert output.metrics is not None, "an engine's last delta has metrics"
        assert output.finish_reason is not None, "an engine's last delta has a finish reason"
        trace.generated(output.metrics)
        self._record(output.metrics)
        self.record_metric("finish_reason", output.finish_reason.value)
        if logprobs:
            self.record_metric("logprobs", logprob_metric(logprobs, tokenizer))
        if self.traces_tokens and output.metrics.passes:
            self.record_metric("token_trace", token_trace(output.metrics.passes, token_ids, tokenizer))
        try:
            rest = prompt.reader.finish(output.finish_reason)
        except OutputError as error:
            if output.finish_reason is FinishReason.LENGTH:
                raise self._cut_short(task, output.metrics, prompt.sampling.max_tokens) from error
            raise
        if rest:
            yield rest
        for note in prompt.reader.notes:
            self.add_note(note)

    def add_note(self, note: str) -> None:
        """Add a line to this prediction's logs; Cog puts what is printed there."""
        print(note)

    def _record(self, metrics: RequestMetrics) -> None:
        """Tell Cog; the first two counts are what Replicate shows for language models."""
        self.record_metric("input_token_count", metrics.input_token_count)
        self.record_metric("output_token_count", metrics.output_token_count)
        self.record_metric("model_passes", metrics.model_passes)
        self.record_metric("tokens_per_second", metrics.tokens_per_second)
        self.record_metric("cached_token_count", metrics.cached_token_count)
        if metrics.draft_token_count:
            self.record_metric("draft_token_count", metrics.draft_token_count)
            self.record_metric("accepted_token_count", metrics.accepted_token_count)
        if drafted := metrics.drafted_by_kind:
            self.record_metric("drafted_by_kind", drafted)
            self.record_metric("accepted_by_kind", metrics.accepted_by_kind)
        stats = self.engine.stats()
        if stats.num_blocks:
            self.record_metric("kv_cache_usage", 1 - stats.num_free_blocks / stats.num_blocks)
        if metrics.time_to_first_token is not None:
            self.record_metric("time_to_first_token", metrics.time_to_first_token)

    def _cut_short(self, task: Task, metrics: RequestMetrics, max_tokens: int) -> InvalidRequestError:
        """The error for an answer that ended before it was complete."""
        written = f"{metrics.output_token_count} tokens"
        if metrics.output_token_count >= max_tokens:
            return InvalidRequestError(f"max_tokens: the answer was not complete after {written}; give more")
        full = f"the model's context of {self.engine.max_model_len} tokens is full"
        return ContextLengthError(f"{task.long_inputs}: {full} after {written} of the answer; {task.shorten_hint}")


def _too_long(task: Task, error: ContextLengthError) -> ContextLengthError:
    return ContextLengthError(f"{task.long_inputs}: {error}; {task.shorten_hint}")


def _request(prompt: Prompt, adapter: str | None) -> GenerationRequest:
    return GenerationRequest(
        request_id=uuid.uuid4().hex,
        prompt_token_ids=prompt.token_ids,
        sampling=prompt.sampling,
        constraint=prompt.constraint,
        adapter=adapter,
    )
