"""Separators and a reader of JSON answers, for all tasks that answer with JSON."""

from __future__ import annotations

import json
import re
from typing import Annotated, Final

from pydantic import AfterValidator

from serving.constraints import JsonSchemaConstraint
from serving.grammar import answer_checks, separator_error
from serving.types import FinishReason
from tasks.errors import OutputError
from tasks.json_text import NestingError, RepeatedKeyError, WrittenFloat, parse_json, write_answer
from tasks.property_order import in_schema_order

# Default separators, as regular expressions: between items or properties, and between a property's name and value. One
# optional space allows both json.dumps' default and compact JSON. If only one of them were allowed, models trained on
# the other would close lists early; if any white space were allowed, a model could write blanks without end.
ITEM_SEPARATOR: Final = ",[ ]?"
KEY_SEPARATOR: Final = ":[ ]?"


def _separator(mark: str) -> AfterValidator:
    def check(pattern: str) -> str:
        if (problem := separator_error(pattern, mark)) is not None:
            raise ValueError(f"{pattern!r} {problem}; one that works: {mark!r}, {mark + ' '!r} or {mark + '[ ]?'!r}")
        return pattern

    return AfterValidator(check)


ItemSeparator = Annotated[str, _separator(",")]
KeySeparator = Annotated[str, _separator(":")]

_SHOWN_END: Final = 60  # characters of a wrong answer that the error message shows


class JsonReader:
    """See `tasks.task.Reader`. Text is shown immediately, because the grammar ensures that it stays valid.

    With a constraint the whole answer is checked at the end, as far as its grammar does not keep the schema.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, constraint: JsonSchemaConstraint | None = None) -> None:
        self._constraint = constraint
        self._text = ""

    def push(self, text: str) -> str:
        """See `Reader.push`."""
        self._text += text
        return text

    def finish(self, reason: FinishReason) -> str:
        """See `Reader.finish`; all text has already been shown."""
        written = f"{len(self._text):,} characters" + (
            f" that end with {self._text[-_SHOWN_END:]!r}" if self._text else ""
        )
        if reason is FinishReason.LENGTH:
            raise OutputError(f"the JSON is not complete after {written}")
        try:
            value = parse_json(self._text, unique_keys=True)
        except NestingError as error:
            raise OutputError(f"the JSON is {error}, after {written}") from error
        except RepeatedKeyError as error:  # of an engine whose grammar does not remember keys
            remedy = "ask again, or list the keys in the schema and set additionalProperties to false"
            raise OutputError(f"the JSON {error}, after {written}; {remedy}") from error
        except ValueError as error:
            remedy = "give stop_sequences that cannot occur in it"
            raise OutputError(
                f"the JSON was ended before it was complete ({error}), after {written}; {remedy}"
            ) from error
        checks = answer_checks(self._constraint)
        if checks is not None and (keyword := checks.first_error(value)) is not None:
            remedy = "ask again with another seed, or simplify that keyword"
            raise OutputError(f"the JSON does not meet {keyword} of the schema, after {written}; {remedy}")
        return ""


def as_written(answer: str, constraint: JsonSchemaConstraint) -> str:
    """A person's JSON as a model writes it: on one line, the keys in the schema's order, numbers with their digits.

    Raises:
        OutputError: it is not JSON.
    """
    try:
        parse_json(answer, unique_keys=True)
        value = json.loads(answer, parse_float=WrittenFloat)
    except ValueError as error:
        raise OutputError(f"the answer is not JSON: {error}") from error
    marks = (constraint.item_separator, ","), (constraint.key_separator, ":")
    separators = [next((s for s in (f"{mark} ", mark) if re.fullmatch(p, s)), f"{mark} ") for p, mark in marks]
    return write_answer(in_schema_order(json.loads(constraint.schema), value), *separators)
