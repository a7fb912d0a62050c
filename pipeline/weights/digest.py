"""Digests of a file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_digest(path: Path) -> str:
    """Git's id of a file's content in hex. It guards against accidents only, so SHA-1 is good enough."""
    with path.open("rb") as file:
        digest = hashlib.sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
