"""Chooses the prompt of a task from the form of its inputs: one text, or an object whose fields are named."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipeline.train.example_files import field_text
from tasks.json_text import write_answer
from tasks.schema.options import RESERVED_INPUTS
from tasks.schema.template import Template

TEXT: Final = "text"  # the name of an only input
MAX_FIELDS: Final = 16  # objects with more fields are one input, their JSON


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """The prompt of a task.

    Args:
        names: of the fields of an input object, each with the name of its input; empty where the whole input is one.
        template: the prompt, with a field for each input.
    """

    names: Mapping[str, str]
    template: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(self.names.values()) or (TEXT,)

    def texts(self, given: str | Mapping[str, Any]) -> dict[str, str]:
        """An example's input as a text for each input."""
        if isinstance(given, str):
            return {TEXT: given}
        if not self.names:
            return {TEXT: write_answer(given)}
        return {name: field_text(given.get(field)) for field, name in self.names.items()}

    def prompt(self, given: str | Mapping[str, Any]) -> str:
        """An example's input in the template, which is one text for a chat."""
        texts = {name: "\n".join(text.splitlines()).strip() for name, text in self.texts(given).items()}
        return Template(self.template, self.inputs).fill(texts).strip()


def choose_prompt(fields: Iterable[str], *, ending: str = "### Output:\n") -> PromptChoice:
    """The prompt for inputs with these fields; for inputs that are texts there are none.

    Args:
        fields: of the inputs, in the wanted order.
        ending: what the prompt ends with, where the answer begins.
    """
    names = _input_names(fields)
    if not names or len(names) > MAX_FIELDS:
        return PromptChoice({}, f"### Input:\n{{{TEXT}}}\n\n{ending}")
    parts = (f"### {_label(field)}:\n{{{name}}}\n\n" for field, name in names.items())
    return PromptChoice(names, f"{''.join(parts)}{ending}")


def _input_names(fields: Iterable[str]) -> dict[str, str]:
    """For each field a different name that can be a parameter of predict: its own where it can."""
    names: dict[str, str] = {}
    for field in fields:
        name = re.sub(r"\W", "_", field, flags=re.ASCII).strip("_") or "field"
        if not name.isidentifier():
            name = f"field_{name}"
        if keyword.iskeyword(name) or name in RESERVED_INPUTS:
            name = f"{name}_"
        number, free = 2, name
        while free in names.values():
            number, free = number + 1, f"{name}_{number}"
        names[field] = free
    return names


def _label(field: str) -> str:
    """A field's name as a heading."""
    words = " ".join(re.sub(r"[{}_<>|\[\]\s]", " ", field).split()) or "Field"
    return f"{words[0].upper()}{words[1:]}"
