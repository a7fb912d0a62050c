"""Writes a JSON Schema for llguidance, with the constraint's separators, and refuses llguidance's own options in it."""

from __future__ import annotations

import json
from typing import Any

from serving.constraints import JsonSchemaConstraint
from serving.errors import GrammarError
from serving.grammar.grammar_limits import MAX_SCHEMA, check_length
from serving.grammar.json_separators import separator_error
from serving.grammar.schema_numbers import with_exact_numbers

OPTIONS = "x-guidance"  # the keyword under which llguidance reads its options
_SEPARATORS = {"item_separator": ",", "key_separator": ":"}


def schema_text(constraint: JsonSchemaConstraint) -> str:
    """The schema as JSON text for llguidance.

    Raises:
        GrammarError: the text is not a schema, is too long, has integers that cannot be kept exactly, or sets options
            that the constraint sets.
    """
    schema = _read(constraint.schema)
    if OPTIONS in schema:
        raise GrammarError(
            f"the JSON schema is refused at #/{OPTIONS}: the constraint sets the separators between values and "
            "allows no other white space; remove it"
        )
    for name, mark in _SEPARATORS.items():
        separator = getattr(constraint, name)
        if (problem := separator_error(separator, mark)) is not None:
            raise GrammarError(f"{name} {separator[:80]!r} {problem}; one that works: {mark + '[ ]?'!r}")
    options = {
        "item_separator": constraint.item_separator,
        "key_separator": constraint.key_separator,
        "whitespace_flexible": False,
    }
    return json.dumps({**schema, OPTIONS: options})


def _read(text: str) -> dict[str, Any]:
    check_length("the JSON schema", len(text), MAX_SCHEMA)
    try:
        schema = with_exact_numbers(
            json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        )
    except RecursionError as error:
        raise GrammarError("the JSON schema is nested too deeply; the limit is some 100 levels") from error
    except ValueError as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from error
    match schema:
        case dict():
            return schema
        case True:
            return {}
        case False:
            raise GrammarError("the JSON schema is false, which allows no value; give one that allows some")
    raise GrammarError(f"the JSON schema is {text.strip()[:40]!r}; give an object, or true for any value")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise GrammarError(f"the JSON schema has the key {twice[:80]!r} twice in one object; remove one of them")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
