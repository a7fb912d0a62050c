"""The style sheets and scripts of the pages, which are files beside this module."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file.

    Args:
        content: its bytes.
        media_type: for the header Content-Type.
        etag: changes with the content.
    """

    content: bytes
    media_type: str
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All files by name, read once."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        found[path.name] = StaticFile(content, f"{_TYPES[path.suffix]}; charset=utf-8", etag)
    return found
