"""The parameters that chat completions and completions share, and those that are accepted at one value only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

MAX_CHOICES: Final = 16  # answers to one request, each of which is a prediction
Count = Annotated[int, Field(ge=0, le=2**53)]
# Inputs of predict.py that have the same name in this API, with the value that changes nothing. Those that OpenAI's own
# API lacks are named as vLLM's.
SAME_NAME: Final[Mapping[str, JsonValue]] = {
    "temperature": None,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "min_tokens": 0,
    "seed": None,
    "adapter": None,  # this server's own: a fine-tune of the model
}


def only(*values: JsonValue) -> AfterValidator:
    """Accepts null and these values, because any other would have to change the answer, which it cannot here."""

    def check(value: JsonValue) -> JsonValue:
        if value is not None and not any(type(value) is type(one) and value == one for one in values):
            allowed = " or ".join(map(repr, values))
            raise ValueError(
                "is not supported by this server; leave it out" + (f" or give {allowed}" if values else "")
            )
        return value

    return AfterValidator(check)


class StreamOptions(BaseModel):
    """Options of a stream; `include_usage` adds a last chunk with the counts of tokens."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    include_usage: bool | None = None
    include_obfuscation: Annotated[JsonValue, only(False)] = None
    continuous_usage_stats: Annotated[JsonValue, only(False)] = None


class SharedBody(BaseModel):
    """What both kinds of requests have. Unknown parameters are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    model: str
    max_tokens: int | None = Field(None, ge=1, le=2**53)
    temperature: float | None = None
    top_p: float | None = None
    top_k: Count | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: Count | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)
    adapter: str | None = None
    stop: str | list[str] | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # These never change an answer.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    logit_bias: Annotated[JsonValue, only({})] = None
    metadata: Annotated[JsonValue, only({})] = None
    store: Annotated[JsonValue, only(False)] = None
    service_tier: Annotated[JsonValue, only("auto", "default")] = None

    def faults(self) -> dict[str, str]:
        """What is wrong between parameters, by parameter. Not a validator, which could not name the parameter."""
        if self.stream_options is not None and not self.stream:
            return {"stream_options": "needs stream to be true"}
        return {}

    @property
    def stop_texts(self) -> list[str]:
        """Texts that end the answer; each may hold commas."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)
