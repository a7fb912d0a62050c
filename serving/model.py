"""A model: one task in front of one engine. Whoever wants answers, opens one and asks it.

model = await Model.open("weights/my-model")
print(await model.answer(text="…"))
async for piece in model.answer(text="…"): ...
"""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from serving.adapters.adapter_tasks import adapter_tasks
from serving.answer_metrics import logprob_metric, reported, token_trace
from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.errors import ContextLengthError, InvalidRequestError
from serving.grammar import TextCheck
from serving.text import Tokenizer
from serving.tracing import BeginTrace, begin_nothing, open_tracing
from serving.tracing.prediction_trace import PredictionTrace
from serving.types import FinishReason, GenerationOutput, GenerationRequest, RequestMetrics, TokenLogprob
from serving.weights import verify
from tasks.confidence import Calibration, answer_probabilities
from tasks.errors import OutputError
from tasks.task import CorrectableTask, Prompt, Task, create_task

ADAPTER: Final = "adapter"  # the input that names one; the engine's, not the task's
CHECK: Final = "check_answer"  # in a call's context: a person's answer, which is checked, and nothing is generated
CHECKED: Final = "checked_answer"  # the metric of such a call; a server of an earlier version does not report it


class Answer:
    """The answer to one call, made while somebody waits for it (`await`) or reads its pieces (`async for`), once.

    Both raise ServingError or TaskError if there is no answer; the message says why. Whoever stops reading early closes
    `pieces()`, which ends the work.

    Args:
        make: makes the pieces, and writes what it learns into the answer that it is given.
    """

    def __init__(self, make: Callable[[Answer], AsyncGenerator[str]]) -> None:
        self.text = ""  # so far
        self.raw = ""  # what the model wrote; the task may have corrected it
        self.metrics: dict[str, Any] = {}  # by the names that Cog reports
        self.probabilities: dict[str, float] = {}  # of its fields, as the model gave them: `tasks.confidence`
        self.notes: tuple[str, ...] = ()  # lines for a log
        self._made = make(self)

    def __await__(self) -> Generator[Any, None, Self]:
        return self._whole().__await__()

    def __aiter__(self) -> AsyncGenerator[str]:
        return self.pieces()

    def __str__(self) -> str:
        return self.text

    async def pieces(self) -> AsyncGenerator[str]:
        """The parts of the text, each as soon as it can no longer change."""
        async with aclosing(self._made):
            async for piece in self._made:
                self.text += piece
                yield piece

    async def _whole(self) -> Self:
        async with aclosing(self.pieces()) as pieces:
            async for _ in pieces:
                pass
        return self


class Model:
    """Answers calls, any number at the same time.

    Args:
        task: the task of the checkpoint.
        engine: continues token ids.
        tokenizer: the tokenizer of the checkpoint.
        adapter_tasks: the tasks of adapters that have one of their own, by the adapter's name.
        adapter_tokenizers: the tokenizers of adapters that add tokens, by the adapter's name.
        traces_tokens: whether the metrics of an answer have `token_trace`, where the engine knows it.
        calibration: what a field's probability says; None for answers without the metric `confidence`.
        begin_trace: begins the trace of an answer.
    """

    def __init__(
        self,
        task: Task,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        adapter_tasks: Mapping[str, Task] = MappingProxyType({}),
        adapter_tokenizers: Mapping[str, Tokenizer] = MappingProxyType({}),
        traces_tokens: bool = False,
        calibration: Calibration | None = None,
        begin_trace: BeginTrace = begin_nothing,
    ) -> None:
        self.task, self.engine, self.tokenizer = task, engine, tokenizer
        self._adapter_tasks, self._adapter_tokenizers = adapter_tasks, adapter_tokenizers
        self._traces_tokens = traces_tokens
        self._calibration = calibration
        self._begin_trace = begin_trace

    @classmethod
    async def open(cls, source: Settings | Path | str) -> Self:
        """Load a model without blocking the event loop; see `load`.

        A checkpoint that is given by its folder has its lock beside it (`NAME.lock`) or in weights.lock.
        """
        return await asyncio.to_thread(cls.load, source if isinstance(source, Settings) else _settings_of(Path(source)))

    @classmethod
    def load(cls, settings: Settings, *, is_locked: bool = True) -> Self:
        """Check the weights against their lock, and start the engine.

        `is_locked` is False for weights that are being made, which have no lock yet.

        Raises:
            WeightsError: a file differs from the lock, or is not a checkpoint that the engine takes.
            TaskFileError: task.json is missing or wrong.
            ServingError: whatever else `create_engine` raises.
        """
        if is_locked:
            verify(settings.weights_dir, settings.weights_lock)
        checkpoint = Checkpoint.of(settings)
        tokenizer, tokenizers = checkpoint.tokenizer, checkpoint.adapter_tokenizers
        task = create_task(checkpoint.folder, tokenizer)
        their_tasks = adapter_tasks(checkpoint.adapters, checkpoint.folder, tokenizer, tokenizers)
        model = cls(
            task,
            create_engine(settings, checkpoint),
            tokenizer,
            adapter_tasks=their_tasks,
            adapter_tokenizers=tokenizers,
            traces_tokens=settings.token_trace,
            calibration=Calibration.beside(settings.weights_dir) if settings.confidence else None,
            begin_trace=open_tracing(),
        )
        # A garbage collection would otherwise visit 300,000 objects that live as long as the model, which stops all
        # answers for 70 ms.
        gc.freeze()
        return model

    def close(self) -> None:
        """End all answers with EngineDeadError, and stop the engine. May be called twice."""
        self.engine.close()
        gc.unfreeze()  # what `load` froze could never be freed; at exit duckdb would report that as leaked

    def answer(self, **inputs: Any) -> Answer:
        """The answer to inputs by name, which are those of the task and `adapter`."""
        return self.ask(inputs)

    def ask(self, inputs: Mapping[str, Any], context: Mapping[str, str] = MappingProxyType({})) -> Answer:
        """The answer to inputs by name.

        Args:
            inputs: those of the task, and `adapter`: the name of a LoRA adapter. What is left out has its default.
            context: W3C's `traceparent` of the caller, or nothing; with `check_answer`, the answer is what `check` says
                of that text, and no engine is asked.
        """

        async def make(answer: Answer) -> AsyncGenerator[str]:
            if (given := context.get(CHECK)) is not None:
                answer.metrics[CHECKED] = True
                yield await asyncio.to_thread(self.check, inputs, given)
                return
            with self._begin_trace(context) as trace:
                # In a thread: a long prompt takes milliseconds, in which no other answer would stream.
                prompt = await asyncio.to_thread(self.prepare, inputs)
                trace.prepared()
                async with aclosing(self._generate(answer, prompt, inputs.get(ADAPTER) or None, trace)) as pieces:
                    async for piece in pieces:
                        yield piece

        return Answer(make)

    def prepare(self, inputs: Mapping[str, Any]) -> Prompt:
        """The task's prompt for the inputs of one call.

        Raises:
            InputError: an input is wrong.
            ContextLengthError: the prompt is far too long.
        """
        task = self._task_of(inputs.get(ADAPTER) or None)
        try:
            return task.prepare({name: value for name, value in inputs.items() if name != ADAPTER})
        except ContextLengthError as error:
            raise _too_long(task, error) from error

    def check(self, inputs: Mapping[str, Any], answer: str) -> str:
        """A person's answer to inputs as it would be shown had the model written it; it takes milliseconds.

        Raises:
            InputError, ContextLengthError: see `prepare`.
            OutputError: the task does not take the answer, or its grammar never lets the model write it.
        """
        prompt, task = self.prepare(inputs), self._task_of(inputs.get(ADAPTER) or None)
        if isinstance(task, CorrectableTask):
            answer = task.as_written({name: value for name, value in inputs.items() if name != ADAPTER}, answer)
        if prompt.constraint is not None and (fault := TextCheck(prompt.constraint).fault(answer)) is not None:
            raise OutputError(f"the model cannot write this answer: {fault}")
        shown = prompt.reader.push(answer) + prompt.reader.finish(FinishReason.STOP)
        if prompt.reader.notes:
            raise OutputError(f"the answer would be changed: {'; '.join(prompt.reader.notes)}")
        return shown

    def answer_prompt(self, prompt: Prompt, adapter: str | None = None) -> Answer:
        """The answer to a prompt of `prepare`, which can be answered only once."""
        return Answer(lambda answer: self._generate(answer, prompt, adapter, PredictionTrace()))

    async def _generate(
        self, answer: Answer, prompt: Prompt, adapter: str | None, trace: PredictionTrace
    ) -> AsyncGenerator[str]:
        """Generate, show what can no longer change, check the whole, show the rest."""
        task, tokenizer = self._task_of(adapter), self._adapter_tokenizers.get(adapter or "", self.tokenizer)
        # Without a constraint each token is one of the whole vocabulary, whose probabilities take a while.
        measures = self._calibration is not None and prompt.constraint is not None
        sampling = replace(prompt.sampling, choice_logprobs=True) if measures else prompt.sampling
        request = GenerationRequest(uuid.uuid4().hex, prompt.token_ids, sampling, prompt.constraint, adapter)
        output = GenerationOutput("", ())
        token_ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        async with aclosing(self.engine.generate(request)) as outputs:
            try:
                async for output in outputs:
                    answer.raw += output.text
                    token_ids += output.token_ids
                    logprobs += output.logprobs
                    if shown := prompt.reader.push(output.text):
                        yield shown
            except ContextLengthError as error:
                raise _too_long(task, error) from error
            except (GeneratorExit, asyncio.CancelledError):  # nobody wants the rest
                counts = {"input_token_count": len(prompt.token_ids), "output_token_count": len(token_ids)}
                answer.metrics |= counts
                raise
        metrics, reason = output.metrics, output.finish_reason
        assert metrics is not None, "an engine's last delta has metrics"
        assert reason is not None, "an engine's last delta has a finish reason"
        trace.generated(metrics)
        answer.metrics |= reported(metrics, self.engine.stats()) | {"finish_reason": reason.value}
        if logprobs:
            answer.metrics["logprobs"] = logprob_metric(logprobs, tokenizer)
        if self._traces_tokens and metrics.passes:
            answer.metrics["token_trace"] = token_trace(metrics.passes, token_ids, tokenizer)
        try:
            rest = prompt.reader.finish(reason)
        except OutputError as error:
            if reason is FinishReason.LENGTH:
                raise self._cut_short(task, metrics, prompt.sampling.max_tokens) from error
            raise
        answer.notes = prompt.reader.notes
        if self._calibration is not None:
            chosen = [one for each in metrics.passes for one in each.choice_logprobs] or [
                one.logprob for one in logprobs
            ]
            if len(chosen) >= len(token_ids) > 0:
                tokens = [tokenizer.token_bytes(token_id) for token_id in token_ids]
                answer.probabilities = answer_probabilities(tokens, chosen[: len(tokens)], answer.text + rest)
                calibration = self._calibration if adapter is None else Calibration()  # which was measured without one
                if answer.probabilities:  # none where the task writes another form than the model
                    answer.metrics["confidence"] = calibration.metric(answer.probabilities)
        if rest:
            yield rest

    def _task_of(self, adapter: str | None) -> Task:
        return self._adapter_tasks.get(adapter, self.task) if adapter else self.task

    def _cut_short(self, task: Task, metrics: RequestMetrics, max_tokens: int) -> InvalidRequestError:
        """The error for an answer that ended before it was complete."""
        written = f"{metrics.output_token_count} tokens"
        if metrics.output_token_count >= max_tokens:
            return InvalidRequestError(f"max_tokens: the answer was not complete after {written}; give more")
        full = f"the model's context of {self.engine.max_model_len} tokens is full"
        return ContextLengthError(f"{task.long_inputs}: {full} after {written} of the answer; {task.shorten_hint}")


def _settings_of(folder: Path) -> Settings:
    own = folder.with_name(f"{folder.name}.lock")
    return Settings(weights_dir=folder, weights_lock=own) if own.is_file() else Settings(weights_dir=folder)


def _too_long(task: Task, error: ContextLengthError) -> ContextLengthError:
    return ContextLengthError(f"{task.long_inputs}: {error}; {task.shorten_hint}")
