"""What callers of Replicate's API send: bodies, and the headers Prefer and Last-Event-ID."""

from __future__ import annotations

import base64
import re
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gateway.errors import BadRequestError, InvalidInputError, NotFoundError
from gateway.http.webhook_client import check_webhook
from gateway.predictions.live_prediction import Position
from gateway.predictions.prediction import Webhook
from gateway.settings import GatewaySettings
from gateway.upstream.model_info import ModelInfo

MAX_WAIT: Final = 60.0
_WAIT: Final = re.compile(r"(?:^|[,;\s])wait(?:\s*=\s*\"?([^\s,;\"]*)\"?)?(?=$|[,;\s])", re.IGNORECASE)


WebhookEvent = Literal["start", "output", "logs", "completed"]
WEBHOOK_EVENTS: Final[tuple[WebhookEvent, ...]] = ("start", "output", "logs", "completed")


class CreateBody(BaseModel):
    """The body that creates a prediction."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    input: dict[str, JsonValue]
    version: str | None = None
    stream: bool | None = Field(None, description="from older clients; every prediction can be streamed")
    webhook: str | None = Field(None, max_length=2000)
    webhook_completed: str | None = Field(None, max_length=2000, description="from older clients: for the end only")
    webhook_events_filter: list[WebhookEvent] | None = None


def check_version(version: str | None, info: ModelInfo) -> None:
    """Refuse other versions than the one that is served: 64 hexadecimal digits, OWNER/NAME:DIGITS, or OWNER/NAME.

    Raises:
        InvalidInputError: the version is missing or is not the one that is served.
    """
    if version is None:
        raise InvalidInputError.at(("version",), "Field required", "missing")
    if version not in (info.version, info.name, f"{info.name}:{info.version}"):
        text = f"{version[:200]!r} is not served here; {info.name}:{info.version} is"
        raise InvalidInputError.at(("version",), text, "unknown")


def check_model(owner: str, name: str, info: ModelInfo) -> None:
    """Refuse other models than the one that is served.

    Raises:
        NotFoundError: it is another one.
    """
    if f"{owner}/{name}" != info.name:
        raise NotFoundError(f"model {owner}/{name} is not served here; {info.name} is")


async def webhook_of(body: CreateBody, settings: GatewaySettings) -> Webhook | None:
    """The webhook that a body asks for; None if it asks for none.

    Raises:
        InvalidInputError: nothing may be sent to its address (`check_webhook`).
    """
    if body.webhook is None and body.webhook_completed is None:
        return None
    name, url = ("webhook", body.webhook) if body.webhook else ("webhook_completed", body.webhook_completed or "")
    await check_webhook(url, settings, name)
    events = WEBHOOK_EVENTS if body.webhook_events_filter is None else tuple(body.webhook_events_filter)
    return Webhook(url, ("completed",) if name == "webhook_completed" else events)


def wait_seconds(prefer: str) -> float:
    """The seconds that a caller wants to wait, by the header `Prefer: wait` or `Prefer: wait=N`; 0 without it.

    Raises:
        BadRequestError: N is not a number from 1 to 60.
    """
    match = _WAIT.search(prefer)
    if match is None:
        return 0.0
    if match[1] is None:
        return MAX_WAIT
    if not re.fullmatch(r"\d{1,2}", match[1]) or not 1 <= int(match[1]) <= MAX_WAIT:
        raise BadRequestError(f"Prefer: wait={match[1][:50]} is not allowed; give a number of seconds from 1 to 60")
    return float(match[1])


def position_of(event_id: str | None) -> Position:
    """The position where a stream goes on after the header Last-Event-ID; the start without it.

    Raises:
        BadRequestError: the gateway does not give such ids.
    """
    if not event_id:
        return Position()
    match = re.fullmatch(r"\d{1,15}:(\d{1,9})-(\d{1,9})", event_id)
    if match is None:
        raise BadRequestError(f"Last-Event-ID: {event_id[:50]!r} is not an id of this stream's events")
    return Position(int(match[1]), int(match[2]))


def encode_cursor(direction: str, number: int) -> str:
    """A cursor for `decode_cursor`; direction is `older` or `newer`."""
    return base64.urlsafe_b64encode(f"{direction}={number}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> dict[str, int]:
    """The arguments of `Store.page` that a cursor stands for.

    Raises:
        BadRequestError: the gateway did not make this cursor.
    """
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
    except ValueError:
        text = ""
    match = re.fullmatch(r"(older|newer)=([0-9]{1,18})", text)
    if match is None:
        raise BadRequestError(f"cursor: {cursor[:50]!r} is not one of this list's cursors")
    return {f"{match[1]}_than": int(match[2])}
