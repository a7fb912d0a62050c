"""What an answer became: why it ended and what it cost, or the error of a prediction that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from pydantic import JsonValue

from gateway.openai.error_objects import ApiError
from gateway.openai.model_inputs import ModelInputs
from gateway.predictions import Prediction, Status

Logprob = Mapping[str, JsonValue]
_WRONG_REQUEST: Final = {"InputError", "InvalidRequestError", "UnknownAdapterError", "OutputError"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    Args:
        text: all of it.
        finish_reason: `stop` or `length`.
        prompt_tokens: number of tokens that the model read.
        cached_tokens: those of them that were found in the engine's cache.
        completion_tokens: number of tokens that it wrote.
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
        ApiError: it failed.
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
        return ApiError(text, param=inputs.params.get("json_schema"), code="invalid_schema")
    if kind in _WRONG_REQUEST:
        return ApiError(text, param=inputs.param_of(text))
    return ApiError(text, status=503, retry_after=2)


def _text(output: JsonValue) -> str:
    if isinstance(output, list):
        return "".join(map(str, output))
    return "" if output is None else str(output)


def _count(value: JsonValue) -> int:
    return int(value) if isinstance(value, int | float) else 0
