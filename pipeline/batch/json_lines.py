"""Writes JSON values as lines."""

from __future__ import annotations

import json
from typing import Any


def to_line(value: Any) -> bytes:
    """One line of UTF-8. Text that is not valid Unicode (half a surrogate pair) is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value).encode() + b"\n"
