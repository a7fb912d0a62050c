"""A string that records which of its characters a chat template wrote itself.

    "<|im_start|>" + message["role"]   # the template's characters are marked, the caller's are not

Operations that are not defined here return a plain `str`, which has no marks. So a mark can get lost, but a caller's
character never gets one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Final, Self, SupportsIndex

MAX_CHARACTERS: Final = 4_000_000  # limit for every text that is built while a template is rendered
_OWN, _OTHER = b"\x01", b"\x00"


class TextTooLongError(Exception):
    """A text would have more than MAX_CHARACTERS."""


class MarkedText(str):
    """A `str` whose operations keep the marks. It has those of the text that it copies; a plain `str` has none."""

    _marks: bytes  # one byte per character; the sandbox hides names that begin with an underscore from templates

    def __new__(cls, text: str = "") -> Self:
        """Copy a text with its marks."""
        return cls._make(text, marks_of(text))

    @classmethod
    def own(cls, text: str) -> Self:
        """A text with a mark on every character: the template wrote all of it."""
        return cls._make(text, _OWN * len(text))

    @classmethod
    def _make(cls, text: str, marks: bytes) -> Self:
        made = super().__new__(cls, str.__str__(text))
        made._marks = marks
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        if not isinstance(other, str) or hasattr(other, "__html__"):  # markup escapes what it is added to
            return NotImplemented
        return join((self, other))

    def __radd__(self, other: str) -> str:
        return join((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        times = operator.index(count)
        check_length(len(self) * times)
        return self._make(str.__mul__(self, times), self._marks * times)

    __rmul__ = __mul__

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        if not isinstance(index, slice):
            at = range(len(self))[index]  # raises IndexError as str does
            index = slice(at, at + 1)
        return self._make(str.__getitem__(self, index), self._marks[index])

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def join(self, parts: Iterable[str], /) -> str:
        """Do as `str.join`, and keep the marks of the characters that stay."""
        known = list(parts)
        return join(text for i, part in enumerate(known) for text in ((self, part) if i else (part,)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """Do as `str.replace`, and keep the marks of the characters that stay."""
        return MarkedText(new).join(self.split(old, count)) if old else str.replace(self, old, new, count)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Do as `str.split`, and keep the marks of the characters that stay."""
        return self._locate(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Do as `str.rsplit`, and keep the marks of the characters that stay."""
        return self._locate(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Do as `str.splitlines`, and keep the marks of the characters that stay."""
        return self._locate(str.splitlines(self, keepends))

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """Do as `str.partition`, and keep the marks of the characters that stay."""
        before, found, after = self._locate(str.partition(self, sep))
        return before, found, after

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """Do as `str.rpartition`, and keep the marks of the characters that stay."""
        before, found, after = self._locate(str.rpartition(self, sep))
        return before, found, after

    def strip(self, chars: str | None = None, /) -> str:
        """Do as `str.strip`, and keep the marks of the characters that stay."""
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        """Do as `str.lstrip`, and keep the marks of the characters that stay."""
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        """Do as `str.rstrip`, and keep the marks of the characters that stay."""
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str, /) -> str:
        """Do as `str.removeprefix`, and keep the marks of the characters that stay."""
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str, /) -> str:
        """Do as `str.removesuffix`, and keep the marks of the characters that stay."""
        return self[: len(str.removesuffix(self, suffix))]

    def upper(self) -> str:
        """Do as `str.upper`, and keep the marks of the characters that stay."""
        return self._in_place(str.upper(self))

    def lower(self) -> str:
        """Do as `str.lower`, and keep the marks of the characters that stay."""
        return self._in_place(str.lower(self))

    def title(self) -> str:
        """Do as `str.title`, and keep the marks of the characters that stay."""
        return self._in_place(str.title(self))

    def capitalize(self) -> str:
        """Do as `str.capitalize`, and keep the marks of the characters that stay."""
        return self._in_place(str.capitalize(self))

    def _in_place(self, text: str) -> str:
        """Keep the marks after a change of case if the length is the same: then each character was replaced by one."""
        return self._make(text, self._marks) if len(text) == len(self) else text

    def _locate(self, parts: Iterable[str], sep: str | None = None) -> list[str]:
        """Put marks on consecutive parts of this text that are separated by `sep` or by white space."""
        found, start = [], 0
        for part in parts:
            start = self.index(part, start)
            found.append(self[start : start + len(part)])
            start += len(part) + len(sep or "")
        return found


def marks_of(text: str) -> bytes:
    """One byte per character: 1 if the template wrote it, else 0."""
    return text._marks if isinstance(text, MarkedText) else _OTHER * len(text)


def join(parts: Iterable[str]) -> MarkedText:
    """Concatenate the parts and their marks.

    Raises:
        TextTooLongError: the result would have more than MAX_CHARACTERS.
    """
    known = list(parts)
    check_length(sum(map(len, known)))
    return MarkedText._make("".join(known), b"".join(map(marks_of, known)))


def check_length(length: int) -> None:
    """Refuse a text of `length` characters before it is built.

    Raises:
        TextTooLongError: `length` is above MAX_CHARACTERS.
    """
    if length > MAX_CHARACTERS:
        raise TextTooLongError(f"over {MAX_CHARACTERS:,} characters")
