"""Server-sent events: reads those of a Cog server and writes those of the door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event with its name and data."""

    name: str
    data: str


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[ServerSentEvent]:
    """The events in a stream of UTF-8; comments and unknown fields are skipped."""
    name = ""
    data: list[str] = []
    async for line in _lines(chunks):
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


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Complete lines. Only LF and CR LF end one: JSON may have other separators, such as U+2028, unescaped."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        if b"\n" in chunk:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r").decode(errors="replace")


def encode_event(name: str, data: str, event_id: str) -> bytes:
    """An event as it is sent. A text with line ends becomes several data lines, as the standard asks."""
    # Every kind of line end would end the field, so each one is normalized.
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    body = "".join(f"data: {line}\n" for line in lines)
    return f"event: {name}\nid: {event_id}\n{body}\n".encode()
