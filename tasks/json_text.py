"""Parses JSON that callers, models and files give, and writes JSON as a grammar makes models write it."""

from __future__ import annotations

import json
from typing import Any, Final

_encode: Final = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps with options makes an encoder in each call


class NestingError(ValueError):
    """A JSON text is nested too deeply to be read; Python's limit is some 1,000 levels."""


class WrittenFloat(float):
    """A number with the digits that it was written with; as a float, 12.50 would become 12.5.

    Args:
        text: JSON's spelling of the number.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Unlike `json.loads`, it raises no RecursionError.

    Raises:
        NestingError: the text is nested too deeply.
        ValueError: it is not JSON.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise NestingError("nested too deeply") from error


def write_answer(value: Any, item_separator: str = ", ", key_separator: str = ": ") -> str:
    """The text of a JSON value that a grammar with these separators allows.

    Numbers keep the digits of a `WrittenFloat`. Of characters that JSON may have unescaped, grammars refuse one in
    strings: U+007F.
    """
    if isinstance(value, dict):
        pairs = (
            f"{_encode(name)}{key_separator}{write_answer(part, item_separator, key_separator)}"
            for name, part in value.items()
        )
        return f"{{{item_separator.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{item_separator.join(write_answer(part, item_separator, key_separator) for part in value)}]"
    if isinstance(value, WrittenFloat):
        return value.text
    text = _encode(value)
    return text.replace("\x7f", "\\u007f") if isinstance(value, str) else text
