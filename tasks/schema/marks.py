"""Finds the labels that structure a prompt, and escapes them in users' texts.

A mark is a line of a template that looks like a label (`### Invoice:`, `</email>`, `Subject:`), a label within a line
(`USER: {text} ASSISTANT:`), or a whole line of plain words. In a value, each mark gets a backslash after its first
character (`#\\## Invoice:`), or that character is escaped in a JSON string. So a prompt has the marks of its template
and no others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

# Text that begins or ends like a heading, tag or label.
_LABEL: Final = re.compile(r"""^[#<\[|=*\-"'`~{>]|[:：>\]|"'`=*]$""")
_MIN_CHARACTERS: Final = 3  # shorter ones, such as a quote or bar, occur in too many texts
_BLANKS: Final = r"[^\S\n]*"


class Marks:
    """The marks of a template.

    Args:
        lines: the template's lines, each as the texts before, between and after its fields.
    """

    def __init__(self, lines: Sequence[Sequence[str]]) -> None:
        in_text: dict[str, None] = {}
        in_json: dict[str, None] = {}
        for literals in lines:
            for index, literal in enumerate(literals):
                mark = literal.strip()
                words = _BLANKS.join(map(re.escape, mark.split()))
                if len(mark) < _MIN_CHARACTERS:
                    continue
                if _LABEL.search(mark):
                    in_text[f"^{_BLANKS}{words}" if index == 0 else words] = None
                    in_json[words] = None
                elif len(literals) == 1:
                    in_text[f"^{_BLANKS}{words}{_BLANKS}$"] = None
        self._in_text = _any_of(in_text)
        self._in_json = _any_of(f"(?={words})" for words in in_json)  # lookahead: finds overlapping marks too

    def count(self, prompt: str) -> int:
        """The number of marks in a prompt, which is the same for all values."""
        return len(self._in_text.findall(prompt))

    def without(self, value: str) -> str:
        """The value with its marks escaped."""
        while True:
            broken = self._in_text.sub(_break, value)
            if broken == value:
                return value
            value = broken

    def json_string(self, value: str) -> str:
        """The value as a JSON string, with its marks escaped."""
        written, end = "", 0
        for match in self._in_json.finditer(value):
            written += _inside(value[end : match.start()]) + _escape(value[match.start()])
            end = match.start() + 1
        return f'"{written}{_inside(value[end:])}"'


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """A case-insensitive pattern for any of these; without patterns, one that never matches."""
    return re.compile("|".join(patterns) or r"(?!)", re.IGNORECASE | re.MULTILINE)


def _break(match: re.Match[str]) -> str:
    mark = match[0].lstrip()
    blanks = match[0].removesuffix(mark)
    return f"{blanks}{mark[0]}{' ' if mark.startswith(chr(92)) else chr(92)}{mark[1:]}"


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}" if character.isascii() else json.dumps(character)[1:-1]
