"""Keeps files that callers send for use as inputs: in memory, for a day, and so many bytes for each caller."""

from __future__ import annotations

import base64
import copy
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from gateway.errors import GatewayError
from gateway.predictions.prediction import new_id

KEEP_SECONDS: Final = 24 * 3600.0
FILES_OF_CALLER: Final = 8  # largest files of one caller that are kept at a time


class TooManyFilesError(GatewayError):
    """A caller's files have more bytes together than the gateway keeps."""

    status = 429
    title = "Too many files"


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file.

    Args:
        name, content_type, metadata: what the caller says of it.
        content: its bytes.
        created: when it came, as Unix time.
        owner: the name of the API key that sent it; None where the gateway asks for no keys.
    """

    name: str
    content_type: str
    content: bytes = field(repr=False)
    metadata: dict[str, JsonValue]
    created: float
    owner: str | None
    id: str = field(default_factory=new_id)

    @property
    def sha256(self) -> str:
        """The digest of its bytes."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def data_url(self) -> str:
        """The file as an address that has its content."""
        return f"data:{self.content_type};base64,{base64.b64encode(self.content).decode()}"


class InputFiles:
    """The files of all callers, each of whom may have `max_bytes` together."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._files: dict[str, InputFile] = {}
        self._owner: str | None = None  # whose files are seen; None: everybody's

    def of(self, owner: str) -> InputFiles:
        """The same files, of which only those of one owner can be seen, used and deleted."""
        view = copy.copy(self)
        view._owner = owner
        return view

    def add(self, name: str, content_type: str, content: bytes, metadata: dict[str, JsonValue]) -> InputFile:
        """Keep a new file.

        Raises:
            TooManyFilesError: the caller's files would be over the limit.
        """
        kept = sum(len(one.content) for one in self.all())
        if kept + len(content) > self._max_bytes:
            text = f"your files have {kept:,} bytes and this one {len(content):,}; the limit is {self._max_bytes:,}: "
            raise TooManyFilesError(text + "delete some, or wait until they expire")
        file = InputFile(name, content_type, content, metadata, self._clock(), self._owner)
        self._files[file.id] = file
        return file

    def all(self) -> list[InputFile]:
        """The files, newest first."""
        oldest = self._clock() - KEEP_SECONDS
        for file in [one for one in self._files.values() if one.created < oldest]:
            del self._files[file.id]
        return [one for one in reversed(self._files.values()) if self._owner in (None, one.owner)]

    def get(self, file_id: str) -> InputFile | None:
        """The file with an id, if it has not expired and the caller may see it."""
        return next((one for one in self.all() if one.id == file_id), None)

    def delete(self, file_id: str) -> bool:
        """Forget a file; returns whether there was one."""
        return self.get(file_id) is not None and self._files.pop(file_id, None) is not None
