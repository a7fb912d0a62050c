"""Prompt templates with named fields, whose values cannot change the prompt's structure.

    Template("### Email:\\n{text}\\n\\n### Invoice:\\n", ("text",)).fill({"text": "You owe us 5 EUR."})

`{name}` inserts an input unchanged, `{name:json}` inserts it as a JSON string. All other braces are plain text.

A mark is a line of a template that looks like a label (`### Invoice:`, `</email>`, `Subject:`), a label within a line
(`USER: {text} ASSISTANT:`), or a whole line of plain words. In a value, each mark gets a backslash after its first
character (`#\\## Invoice:`), or that character is escaped in a JSON string. So a prompt has the marks of its template
and no others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# Text that begins or ends like a heading, tag or label.
_LABEL: Final = re.compile(r"""^[#<\[|=*\-"'`~{>]|[:：>\]|"'`=*]$""")
_MIN_CHARACTERS: Final = 3  # shorter ones, such as a quote or bar, occur in too many texts
_BLANKS: Final = r"[^\S\n]*"


class Marks:
    """The marks of a template, whose lines are the texts before, between and after their fields."""

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


class TemplateError(ValueError):
    """A template and its inputs do not match; the message says how."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A place for an input."""

    name: str
    as_json: bool


class Template:
    """A prompt template with a field for every input.

    Args:
        text: contains `{name}` or `{name:json}` at least once for each input.
        inputs: their names.

    Attributes:
        marks: the template's labels, which are escaped in values.

    Raises:
        TemplateError: an input has no field.
    """

    def __init__(self, text: str, inputs: Sequence[str]) -> None:
        self._field = re.compile(rf"\{{({'|'.join(map(re.escape, inputs))})(:json)?\}}")
        self._parts = tuple(self._split(text))
        fields = {part.name for part in self._parts if isinstance(part, _Field)}
        if missing := [name for name in inputs if name not in fields]:
            raise TemplateError(_explain(text, missing))
        self.marks = Marks([self._literals(line) for line in text.split("\n")])

    def fill(self, values: Mapping[str, str]) -> str:
        """The prompt with these values, one for each input."""
        return "".join(text for text, _ in self.pieces(values))

    def pieces(self, values: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
        """The parts of the prompt, each with a flag that says whether it comes from the template."""
        for part in self._parts:
            if isinstance(part, str):
                yield part, True
            else:
                yield self._write(part, values[part.name]), False

    def _write(self, field: _Field, value: str) -> str:
        return self.marks.json_string(value) if field.as_json else self.marks.without(value)

    def _split(self, text: str) -> Iterator[str | _Field]:
        end = 0
        for match in self._field.finditer(text):
            yield text[end : match.start()]
            yield _Field(match[1], match[2] is not None)
            end = match.end()
        yield text[end:]

    def _literals(self, line: str) -> list[str]:
        """The texts before, between and after the fields of a line."""
        return [part for part in self._split(line) if isinstance(part, str)]


def _explain(text: str, missing: Sequence[str]) -> str:
    wanted = ", ".join(f"{{{name}}}" for name in missing)
    others = ", ".join(dict.fromkeys(re.findall(r"\{[A-Za-z_]\w*\}", text)))
    hint = f"; it has {others}: name those in inputs" if others else ""
    return f"the template has no {wanted}{hint}"
