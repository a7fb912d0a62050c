"""Reads a chat model's free text."""

from __future__ import annotations

from serving.types import FinishReason


class TextReader:
    """See `tasks.task.Reader`. A text that was cut off at `max_tokens` is a valid answer."""

    notes: tuple[str, ...] = ()

    def push(self, text: str) -> str:
        """See `Reader.push`; all text is shown immediately."""
        return text

    def finish(self, reason: FinishReason) -> str:
        """See `Reader.finish`."""
        return ""
