"""Prompt templates with named fields, whose values cannot change the prompt's structure.

    Template("### Email:\\n{text}\\n\\n### Invoice:\\n", ("text",)).fill({"text": "You owe us 5 EUR."})

`{name}` inserts an input unchanged, `{name:json}` inserts it as a JSON string. All other braces are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.schema.marks import Marks


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
