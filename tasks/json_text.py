"""Parses JSON that callers, models and files give, and writes JSON as a grammar makes models write it."""

from __future__ import annotations

import json
from typing import Any, Final

_encode: Final = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps with options makes an encoder in each call


class NestingError(ValueError):
    """A JSON text is nested too deeply to be read; Python's limit is some 1,000 levels."""


class RepeatedKeyError(ValueError):
    """An object of a JSON text has a key twice."""


class WrittenFloat(float):
    """A number with the digits of its JSON text; as a float, 12.50 would become 12.5."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def parse_json(text: str | bytes, *, unique_keys: bool = False) -> Any:
    """The value of a JSON text. Unlike `json.loads`, it raises no RecursionError.

    Args:
        text: the whole text.
        unique_keys: whether objects that have a key twice are refused; otherwise its last value counts.

    Raises:
        NestingError: the text is nested too deeply.
        RepeatedKeyError: an object has a key twice.
        ValueError: it is not JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_with_unique_keys if unique_keys else None)
    except RecursionError as error:
        raise NestingError("nested too deeply") from error


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RepeatedKeyError(f"has the key {key[:80]!r} twice in one object")
        found[key] = value
    return found


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
