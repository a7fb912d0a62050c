"""The predictions behind one request: started and followed together, cancelled with it, and read as answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, cast

from fastapi import Request
from pydantic import JsonValue

from gateway.cache.answer_cache import CacheUse
from gateway.errors import InvalidInputError
from gateway.gateway import Gateway
from gateway.openai.error_objects import ApiError
from gateway.openai.model_inputs import ModelInputs
from gateway.predictions.live_prediction import Finished, LivePrediction, LogText, OutputPiece
from gateway.predictions.prediction import Prediction, Status, new_id, now
from gateway.upstream.model_info import ModelInfo

Logprob = Mapping[str, JsonValue]
_OF_TOOLS: Final = ("the tool ", "the grammar of the tools ")  # how errors of tools' schemas begin
_WRONG_REQUEST: Final = {"InputError", "InvalidRequestError", "UnknownAdapterError", "OutputError"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    Args:
        text: the whole text of the answer.
        finish_reason: `stop` or `length`.
        prompt_tokens: the number of tokens that the model read.
        cached_tokens: the number of those of them that were found in the engine's cache.
        completion_tokens: the number of tokens that the model wrote.
        logprobs: one object for each token, as in OpenAI's `logprobs.content`; None where none were asked for.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    logprobs: Sequence[Logprob] | None


def read_answer(prediction: Prediction, inputs: ModelInputs) -> Answer:
    """The answer of a prediction that has ended.

    JSON that was cut at the limit of tokens is a failed prediction, and in this API an answer with the reason `length`.

    Raises:
        ApiError: the prediction failed.
    """
    metrics = prediction.metrics
    was_cut = metrics.get("finish_reason") == "length"
    if prediction.status is not Status.SUCCEEDED and not (prediction.status is Status.FAILED and was_cut):
        raise _failure(prediction, inputs)
    logprobs = metrics.get("logprobs")
    if "logprobs" in inputs.values and logprobs is None:
        logprobs = []  # of an empty answer
    return Answer(
        text=_text(prediction.output),
        finish_reason="length" if was_cut else "stop",
        prompt_tokens=_count(metrics.get("input_token_count")),
        cached_tokens=_count(metrics.get("cached_token_count")),
        completion_tokens=_count(metrics.get("output_token_count")),
        logprobs=cast(list[Logprob], logprobs) if isinstance(logprobs, list) else None,
    )


def usage_object(answers: Sequence[Answer], n: int) -> dict[str, JsonValue]:
    """The counts of tokens of all answers, `n` to each prompt. A prompt counts once."""
    prompt = sum(answer.prompt_tokens for answer in answers[::n])
    completion = sum(answer.completion_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in answers[::n])},
    }


def _failure(prediction: Prediction, inputs: ModelInputs) -> ApiError:
    kind = str(prediction.metrics.get("error_type"))
    text = prediction.error or "the prediction failed"
    if prediction.status is Status.CANCELED:
        return ApiError("the prediction was cancelled", code="canceled")
    if kind == "EngineBusyError":
        return ApiError(text, status=429, retry_after=1)
    if kind == "ContextLengthError":
        return ApiError(text, param=inputs.param_of(text), code="context_length_exceeded")
    if kind == "GrammarError":
        names = ("tools", "json_schema") if text.startswith(_OF_TOOLS) else ("json_schema", "tools")
        param = next((inputs.params[name] for name in names if name in inputs.params), None)
        return ApiError(text, param=param, code="invalid_schema")
    if kind in _WRONG_REQUEST:
        return ApiError(text, param=inputs.param_of(text))
    return ApiError(text, status=503, retry_after=2)


def _text(output: JsonValue) -> str:
    if isinstance(output, list):
        return "".join(map(str, output))
    return "" if output is None else str(output)


def _count(value: JsonValue) -> int:
    return int(value) if isinstance(value, int | float) else 0


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of one choice."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one choice."""

    index: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Choices:
    """The predictions of one request, while they run."""

    predictions: Sequence[LivePrediction]  # one for each choice
    inputs: Sequence[ModelInputs]  # of each of these predictions

    async def answers(self) -> list[Answer]:
        """The answers of all predictions, once all have ended.

        Raises:
            ApiError: one of them failed.
        """
        ended = [await live.finished() for live in self.predictions]
        return [read_answer(prediction, inputs) for prediction, inputs in zip(ended, self.inputs, strict=True)]

    async def follow(self) -> AsyncIterator[Piece | Ended]:
        """The texts of all choices as they come, and the end of each.

        Raises:
            ApiError: one of them failed.
        """
        sources = [self._follow(index) for index in range(len(self.predictions))]
        upcoming = {asyncio.ensure_future(anext(source, None)): source for source in sources}
        try:
            while upcoming:
                done, _ = await asyncio.wait(upcoming, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    source = upcoming.pop(task)
                    if (event := task.result()) is not None:
                        yield event
                        upcoming[asyncio.ensure_future(anext(source, None))] = source
        finally:
            for task in upcoming:
                task.cancel()

    async def _follow(self, index: int) -> AsyncIterator[Piece | Ended]:
        async for event in self.predictions[index].follow():
            match event:
                case OutputPiece(value=value):
                    yield Piece(index, value if isinstance(value, str) else str(value))
                case Finished(prediction=prediction):
                    yield Ended(index, read_answer(prediction, self.inputs[index]))
                case LogText():
                    pass


@asynccontextmanager
async def run_choices(
    request: Request, gateway: Gateway, info: ModelInfo, inputs: Sequence[ModelInputs], n: int
) -> AsyncIterator[Choices]:
    """Start `n` predictions for each of the inputs. They are cancelled at the end and when the client disconnects.

    Raises:
        ApiError: a server refuses the inputs.
        TooManyPredictionsError: too many run or wait.
    """
    each = [one for one in inputs for _ in range(n)]
    started: list[LivePrediction] = []

    def cancel() -> None:
        for live in started:
            if not live.is_finished:
                gateway.runner.cancel(live.id)

    watching, cache_use = None, CacheUse.of(request.headers)
    try:
        for number, one in enumerate(each):
            started.append(await start_prediction(gateway, info, one, number % n, cache_use))
        watching = asyncio.create_task(_call_on_disconnect(request, cancel))
        yield Choices(started, each)
    finally:
        if watching is not None:
            watching.cancel()
        cancel()


async def start_prediction(
    gateway: Gateway, info: ModelInfo, inputs: ModelInputs, number: int, cache_use: CacheUse
) -> LivePrediction:
    """A new prediction, as one of several with the same inputs; nothing but a caller's wish cancels it.

    Raises:
        ApiError: a server refuses the inputs.
        TooManyPredictionsError: too many run or wait.
    """
    prediction = Prediction(
        id=new_id(),
        model=info.name,
        version=info.version,
        input=inputs.numbered(number),
        created_at=now(),
        weights_digest=info.weights_digest,
        request=inputs.request,
    )
    try:
        return await gateway.runner.start(prediction, cache_use)
    except InvalidInputError as refusal:
        raise inputs.explain(refusal) from refusal


async def _call_on_disconnect(request: Request, call: Callable[[], None]) -> None:
    """Call when the client disconnects: the body has been read, so no other message comes before that."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    call()
