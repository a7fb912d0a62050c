"""A prediction: what one call of predict() was asked and has answered.

This is the one word for it, as in Replicate's API; OpenAI's API makes one for each choice. There are three views of the
same prediction: `Prediction` (here) is its state at one moment, as it is stored and shown; `LivePrediction` is the same
while it grows and is followed; `PredictionTask` is what asks servers for it. A request is an HTTP request.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from pydantic import JsonValue

_ALPHABET = string.ascii_lowercase + string.digits
ID_LENGTH = 26  # 134 random bits: cannot be guessed


class Status(StrEnum):
    """How far a prediction is; the words are Replicate's."""

    STARTING = "starting"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        """Whether the prediction can no longer change."""
        return self not in (Status.STARTING, Status.PROCESSING)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Who is told about a prediction, and of which of its events."""

    url: str
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """One prediction at one moment.

    Args:
        id: the id, lower-case letters and digits.
        model: the model's name, OWNER/NAME.
        version: the model's version, 64 hexadecimal digits.
        input: the inputs by names of predict's parameters, as the caller gave them.
        created_at, started_at, completed_at: times in UTC as ISO 8601 text.
        status: how far the prediction is.
        output: a list of pieces for models that stream; partial while the prediction runs.
        logs: the lines that predict() has printed; partial while it runs.
        metrics: the metrics that predict() has recorded, by name.
        source: where the prediction came from: `api` or `web`.
        weights_digest: the digest of the weights that answered, where the gateway was told.
        webhook: who is told about the prediction; None for nobody.
        owner: the name of the API key that made it; None where the gateway asks for no keys.
        request: the body of a request of OpenAI's Responses API that stores its answer, with which that is shown again
            and continued; None for any other.
    """

    id: str
    model: str
    version: str
    input: Mapping[str, JsonValue]
    created_at: str
    status: Status = Status.STARTING
    output: JsonValue = None
    logs: str = ""
    error: str | None = None
    metrics: Mapping[str, JsonValue] = field(default_factory=dict)
    started_at: str | None = None
    completed_at: str | None = None
    source: str = "api"
    weights_digest: str | None = None
    webhook: Webhook | None = None
    owner: str | None = None
    request: Mapping[str, JsonValue] | None = None


def new_id() -> str:
    """An id for a prediction that nobody can guess."""
    number = secrets.randbelow(len(_ALPHABET) ** ID_LENGTH)  # once: to ask for each character takes longer
    digits = []
    for _ in range(ID_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def timestamp(time: datetime) -> str:
    """A time in UTC as text, such as 2026-01-31T12:00:00.000000Z; texts of this form sort by time."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def now() -> str:
    """The present time as `timestamp` writes it."""
    return timestamp(datetime.now(UTC))


def seconds_between(start: str, end: str) -> float:
    """The seconds between two texts of `now`."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def adapter_of(inputs: Mapping[str, JsonValue]) -> str | None:
    """The name of the adapter that predict() is asked for (docs/adapters.md)."""
    name = inputs.get("adapter")
    return name if isinstance(name, str) and name else None


def output_text(output: JsonValue) -> str:
    """An output as people read it: pieces of text joined, anything else as JSON."""
    if isinstance(output, list) and all(isinstance(piece, str) for piece in output):
        return "".join(map(str, output))
    if output is None or isinstance(output, str):
        return output or ""
    return json.dumps(output, ensure_ascii=False, indent=2)
