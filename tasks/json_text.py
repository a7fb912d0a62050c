"""Parses JSON that callers, models and files give."""

from __future__ import annotations

import json
from typing import Any


class NestingError(ValueError):
    """A JSON text is nested too deeply to be read; Python's limit is some 1,000 levels."""


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
