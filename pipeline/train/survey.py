"""Reads all examples once and keeps what the choices need: keys of inputs, the shape of outputs, counts and places."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from pipeline.answer_format.errors import ExamplesError
from pipeline.train.example_files import (
    INSTRUCTIONS,
    MAX_REPORTED,
    Example,
    ExampleFiles,
    Part,
    field_text,
    json_fault,
    refuse,
)
from pipeline.train.infer_schema import Shape
from pipeline.train.split import InputKeys
from pipeline.train.template_choice import MAX_FIELDS

TaskName = Literal["schema", "chat"]
_MOST_JSON = 0.5  # of outputs written as texts: with more of them JSON, the others are taken for mistakes


@dataclass
class Survey:
    """What all examples say together.

    Args:
        keys: of the inputs.
        given: the part of the file that each example is in.
        shape: of the outputs that are objects.
        fields: of the inputs that are objects, by how many have them; no more than are used.
        told: instructions that are the same in all inputs so far, by their fields; None before the first input.
        unused: fields of lines that are not used, by how many have them.
        longest_input: in characters.
        longest_output: in bytes.
        forms: how many inputs and outputs have which form.
        places: of the first examples of each form.
    """

    keys: InputKeys = field(default_factory=InputKeys)
    given: list[Part | None] = field(default_factory=list)
    shape: Shape = field(default_factory=Shape)
    fields: Counter[str] = field(default_factory=Counter)
    told: dict[str, str] | None = None
    unused: Counter[str] = field(default_factory=Counter)
    longest_input: int = 0
    longest_output: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, example: Example) -> None:
        """Add an example."""
        source = example.input_text
        key = self.keys.add(source)
        self.given.append(example.part)
        self.longest_input = max(self.longest_input, len(source))
        self.longest_output = max(self.longest_output, len(example.output_text.encode()))
        if isinstance(example.input, dict):
            told = {name: field_text(example.input.get(name)) for name in INSTRUCTIONS}
            known = told if self.told is None else self.told
            self.told = {name: text for name, text in told.items() if text.strip() and known.get(name) == text}
            self.fields.update(name for name in example.input if len(self.fields) <= MAX_FIELDS or name in self.fields)
        self._count("input object" if isinstance(example.input, dict) else "input text", example.place)
        self.unused.update(name for name in example.unused if len(self.unused) < MAX_REPORTED or name in self.unused)
        if example.value is None:
            fault = json_fault(example.output_text) or f"output is {example.output_text[:60]!r}"
            self._count("output text", f"{example.place}: {fault}")
        else:
            self._count("output object" if example.text is None else "output JSON", example.place)
            self.shape.add(example.value, source.lower(), key & 1)

    @property
    def fixed(self) -> dict[str, str]:
        """Instructions that are the same in all inputs, by their fields."""
        return self.told or {}

    def task(self, wanted: TaskName | None) -> tuple[TaskName, str]:
        """The task, and a sentence that says why.

        Args:
            wanted: by the user; None chooses.

        Raises:
            ExamplesError: some outputs are objects and some are not.
        """
        count, texts = len(self.given), self.forms["output text"]
        if wanted == "chat":
            return "chat", "The task is chat, as you chose; all outputs are taken as texts."
        if not texts:
            return "schema", f"The task is schema, because all {count:,} outputs are JSON objects."
        if wanted == "schema" or self.forms["output object"] or self.forms["output JSON"] > _MOST_JSON * count:
            raise ExamplesError(
                f"{texts:,} of {count:,} outputs are texts and the others are JSON objects; mend them, or choose the "
                f"task chat, which takes all as texts\n{self._first('output text')}"
            )
        also = f"; {found:,} of them are JSON" if (found := self.forms["output JSON"]) else ""
        return "chat", f"The task is chat, because the outputs are texts{also}."

    def check_inputs(self) -> None:
        """Refuse inputs of two forms.

        Raises:
            ExamplesError: some inputs are texts and some are objects.
        """
        texts, objects = self.forms["input text"], self.forms["input object"]
        if texts and objects:
            few = "input text" if texts < objects else "input object"
            raise ExamplesError(
                f"{texts:,} inputs are texts and {objects:,} are objects; write all in one form\n{self._first(few)}"
            )

    def _count(self, form: str, place: str) -> None:
        self.forms[form] += 1
        places = self.places.setdefault(form, [])
        if len(places) < MAX_REPORTED:
            places.append(place)

    def _first(self, form: str) -> str:
        more = self.forms[form] - len(self.places[form])
        return "\n".join([*self.places[form], *([f"and {more:,} lines more"] if more else [])])


def survey(files: ExampleFiles) -> Survey:
    """Read all examples once.

    Raises:
        ExamplesError: lines cannot be used; the message names the first ones. Or there is none.
    """
    found, problems, wrong = Survey(), list[str](), 0
    for item in files.lines():
        if isinstance(item, Example):
            found.add(item)
        else:
            wrong += 1
            if len(problems) < MAX_REPORTED:
                problems.append(item)
    if wrong:
        raise refuse(problems, wrong)
    found.check_inputs()
    return found
