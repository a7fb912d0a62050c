"""Server-sent events: reads those of a Cog server and writes those of the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event with its name and data."""

    name: str
    data: str


class EventReader:
    """Reads events from a stream of UTF-8; comments and unknown fields are skipped."""

    def __init__(self) -> None:
        self._rest = bytearray()  # the beginning of a line
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """The events that are complete with the next bytes of the stream. All are to be taken."""
        self._rest += chunk
        if b"\n" not in chunk:
            return
        # Only LF and CR LF end a line: JSON may have other separators, such as U+2028, unescaped.
        *lines, self._rest = self._rest.split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode(errors="replace")
            if line:
                self._take(line)
                continue
            if self._data:
                yield ServerSentEvent(self._name or "message", "\n".join(self._data))
            self._name, self._data = "", []

    def _take(self, line: str) -> None:
        key, _, value = line.partition(":")
        if key == "event":
            self._name = value.removeprefix(" ")
        elif key == "data":
            self._data.append(value.removeprefix(" "))


def encode_event(name: str, data: str, event_id: str) -> bytes:
    """An event as it is sent. A text with line ends becomes several data lines, as the standard asks."""
    # Every kind of line end would end the field, so each one is normalized.
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    body = "".join(f"data: {line}\n" for line in lines)
    return f"event: {name}\nid: {event_id}\n{body}\n".encode()
