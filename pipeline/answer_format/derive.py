"""Derives property order and separators from example answers, and checks each example against the result."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.answer_format.errors import ExamplesError
from pipeline.answer_format.example_answers import WrittenAnswer
from serving.constraints import JsonSchemaConstraint
from serving.grammar import TextCheck
from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR
from tasks.property_order import reordered
from tasks.schema.task import answer_constraint

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\s+')


def _separators(examples: Iterable[WrittenAnswer]) -> tuple[str, str, list[str]]:
    """Patterns of what all examples whose text is known have between items, and between a key and its value; and notes.

    Raises:
        ExamplesError: a text has white space that is not part of a separator, as in pretty-printed JSON.
    """
    item: Counter[str] = Counter()
    key: Counter[str] = Counter()
    for example in examples:
        if example.text is not None:
            _count(example.place, example.text, item, key)
    notes = [_note(name, counts) for name, counts in (("items", item), ("keys", key)) if len(counts) > 1]
    return _pattern(item, ITEM_SEPARATOR), _pattern(key, KEY_SEPARATOR), notes


def _count(place: str, text: str, item: Counter[str], key: Counter[str]) -> None:
    if text != text.strip():
        raise ExamplesError(
            f"{place}: the answer {text[:40]!r}… has white space around its JSON; a constrained answer has none. "
            "Put what comes before it at the end of the prompt, and train on answers without it"
        )
    tokens = _TOKEN.findall(text)
    # blanks[i + 1]: tokens[i] if it is white space
    blanks = ["", *(token if token.isspace() else "" for token in tokens), ""]
    for index, token in enumerate(tokens):
        around = blanks[index] + token + blanks[index + 2]
        if token == ",":
            item[around] += 1
        elif token == ":":
            key[around] += 1
        elif (token in ("{", "[") and blanks[index + 2]) or (token in ("}", "]") and blanks[index]):
            raise ExamplesError(_pretty_printed(place, token, text))
        if token in (",", ":") and "\n" in around:
            raise ExamplesError(_pretty_printed(place, token, text))


def _pretty_printed(place: str, token: str, text: str) -> str:
    return (
        f"{place}: the answer {text[:40]!r}… is pretty-printed (white space at {token!r}); "
        "a constrained answer is one line. Train on answers written by json.dumps(answer, ensure_ascii=False)"
    )


def _pattern(counts: Counter[str], usual: str) -> str:
    """A pattern for all separators that were seen; their characters need no escaping in a regular expression."""
    if not counts:
        return usual
    seen = sorted(counts, key=len)
    if len(seen) == 1:
        return seen[0]
    return f"{seen[0]}[ ]?" if seen == [seen[0], f"{seen[0]} "] else f"({'|'.join(seen)})"


def _note(name: str, counts: Counter[str]) -> str:
    found_counts = ", ".join(f"{separator!r} {count} times" for separator, count in counts.most_common())
    return f"{name} are separated in different ways: {found_counts}; the model may choose"


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


def derive_format(schema: dict[str, Any], examples: Sequence[WrittenAnswer]) -> AnswerFormat:
    """The property order and separators of the examples, and which examples they still do not allow.

    Raises:
        ExamplesError: the examples are pretty-printed.
        TaskFileError: the schema cannot be compiled into a grammar.
    """
    ordered, conflicts = reordered(schema, [example.value for example in examples])
    item, key, found = _separators(examples)
    notes = [*conflicts, *found]
    if all(example.text is None for example in examples):
        notes.append(
            "the answers are JSON values, not texts, so their separators cannot be seen; one space is optional"
        )
    constraint = answer_constraint(ordered, item, key)
    return AnswerFormat(ordered, item, key, tuple(notes), _refused(constraint, examples))


def _refused(constraint: JsonSchemaConstraint, examples: Sequence[WrittenAnswer]) -> tuple[str, ...]:
    check = TextCheck(constraint)
    texts = ((example, _text(example)) for example in examples)
    return tuple(f"{example.place}: {fault}" for example, text in texts if (fault := check.fault(text)) is not None)


def _text(example: WrittenAnswer) -> str:
    return json.dumps(example.value, ensure_ascii=False) if example.text is None else example.text
