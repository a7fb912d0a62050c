"""Derives property order and separators from example answers, and checks each example against the result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import LLTokenizer

from pipeline.answer_format.example_answers import Example
from pipeline.answer_format.property_order import reordered
from pipeline.answer_format.separators import find_separators
from serving.constraints import JsonSchemaConstraint
from serving.grammar import compile_constraint
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
    vocabulary = LLTokenizer("byte")
    matcher = compile_constraint(constraint, vocabulary)
    refused = []
    for example in examples:
        text = example.text
        if text is None:
            text = json.dumps(example.value, ensure_ascii=False)
        tokens = vocabulary.tokenize_bytes(text.encode())
        one = matcher.deep_copy()
        taken = one.try_consume_tokens(tokens)
        if taken < len(tokens) or not one.is_accepting():
            refused.append(f"{example.place}: {_explain(text.encode(), taken)}")
    return tuple(refused)


def _explain(text: bytes, taken: int) -> str:
    """Where an answer breaks the constraint; `taken` is the number of bytes that it allows."""
    before, after = (part.decode(errors="replace") for part in (text[max(0, taken - 30) : taken], text[taken:][:30]))
    if text[:taken].rstrip(b"u0123456789abcdefABCDEF").endswith(b"\\") or after.startswith("/"):
        hint = "; a constrained answer has no escaped characters: train on json.dumps(answer, ensure_ascii=False)"
    else:
        hint = ""
    return f"after {before!r} the schema does not allow {after!r}{hint}" if after else f"ends too early: {before!r}"
