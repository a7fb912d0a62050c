"""Server-sent events: reads those of a Cog server and writes those of the door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event with its name and data."""

    name: str
    data: str


async def read_events(lines: AsyncIterator[str]) -> AsyncIterator[ServerSentEvent]:
    """The events in the lines of a stream; comments and unknown fields are skipped."""
    name = ""
    data: list[str] = []
    async for line in lines:
        if not line:
            if data:
                yield ServerSentEvent(name or "message", "\n".join(data))
            name, data = "", []
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            name = value
        elif key == "data":
            data.append(value)


def encode_event(name: str, data: str, event_id: str) -> bytes:
    """An event as it is sent. A text with line ends becomes several data lines, as the standard asks."""
    # Every kind of line end would end the field, so each one is normalized.
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    body = "".join(f"data: {line}\n" for line in lines)
    return f"event: {name}\nid: {event_id}\n{body}\n".encode()
