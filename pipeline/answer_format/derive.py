"""Derives property order and separators from example answers, and checks each example against the result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.answer_format.answer_check import AnswerCheck
from pipeline.answer_format.example_answers import Example
from pipeline.answer_format.property_order import reordered
from pipeline.answer_format.separators import find_separators
from serving.constraints import JsonSchemaConstraint
from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR
from tasks.schema.task import answer_constraint


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The derived options of a schema task.

    Args:
        schema: the JSON Schema, with the properties of all objects in the order of the examples.
        item_separator: regular expression.
        key_separator: regular expression.
        notes: messages about what the examples leave open or write in different ways.
        refused: messages about examples that the resulting constraint does not allow.
    """

    schema: dict[str, Any]
    item_separator: str
    key_separator: str
    notes: tuple[str, ...]
    refused: tuple[str, ...]


def derive_format(schema: dict[str, Any], examples: Sequence[Example]) -> AnswerFormat:
    """The property order and separators of the examples, and which examples they still do not allow.

    Raises:
        ExamplesError: the examples are pretty-printed.
        TaskFileError: the schema cannot be compiled into a grammar.
    """
    ordered, conflicts = reordered(schema, [example.value for example in examples])
    separators = find_separators(examples)
    notes = [*conflicts, *separators.notes]
    if all(example.text is None for example in examples):
        notes.append(
            "the answers are JSON values, not texts, so their separators cannot be seen; one space is optional"
        )
    item = ITEM_SEPARATOR if separators.item is None else separators.item
    key = KEY_SEPARATOR if separators.key is None else separators.key
    constraint = answer_constraint(ordered, item, key)
    return AnswerFormat(ordered, item, key, tuple(notes), _refused(constraint, examples))


def _refused(constraint: JsonSchemaConstraint, examples: Sequence[Example]) -> tuple[str, ...]:
    check = AnswerCheck(constraint)
    texts = ((example, _text(example)) for example in examples)
    return tuple(f"{example.place}: {fault}" for example, text in texts if (fault := check.fault(text)) is not None)


def _text(example: Example) -> str:
    return json.dumps(example.value, ensure_ascii=False) if example.text is None else example.text
