"""Writes a constraint as a grammar in llguidance's dialect of Lark, which vLLM accepts too.

What is too long, is no JSON Schema, or cannot be kept exactly is refused here, before anything is compiled. llguidance
computes with 64-bit floats, so numbers of a schema that it would read as others are rewritten: what is allowed
afterwards is allowed by the schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, Literal, TypeGuard

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import is_lark_syntax

from serving.constraints import JsonSchemaConstraint, LarkConstraint
from serving.errors import GrammarError
from serving.grammar.answer_checks import AnswerChecks, checks_of
from serving.grammar.grammar_limits import MAX_LARK, MAX_SCHEMA, check_length
from serving.grammar.relax import relax
from serving.grammar.schema_tree import DATA, MAPS, types_of

_MAX_LENGTH = 64


@lru_cache(64)
def separator_error(pattern: str, mark: str) -> str | None:
    """Why a pattern cannot be a separator of JSON; None if it matches only the mark with blanks around it.

    Args:
        pattern: regular expression; llguidance panics if it is invalid.
        mark: a comma or a colon.
    """
    if "/" in pattern or "\n" in pattern or len(pattern) > _MAX_LENGTH:
        return f"a separator has no slash, no newline and at most {_MAX_LENGTH} characters"
    if error := LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern)):
        return "is not a regular expression: " + " ".join(error.partition("\n   1 |")[0].split())
    others = f"start: OTHER\nOTHER: /({pattern})/ & ~/[ \\t]*{mark}[ \\t]*/"
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(others), log_level=0)
    matcher.compute_bitmask()  # sets an error if there are no other texts
    return None if matcher.is_error() else f"also matches what is not {mark!r} with blanks around it"


_EXACT: Final = 2**53  # up to it, a float has every integer
_LARGEST: Final = 2**63 - 1024  # the largest float that is a signed 64-bit integer
_MOST_MULTIPLES: Final = 1000  # which are listed


def with_exact_numbers(schema: Any, path: str = "#") -> Any:
    """A copy of the schema whose numbers llguidance keeps.

    - Bounds of integers over 2**53 become the next float that is inside.
    - `multipleOf` between two bounds becomes a list of up to 1,000 numbers, because llguidance knows no negative ones.

    Raises:
        GrammarError: no integer between two bounds is a float, or an integer of `const` or `enum` is none.
    """
    if isinstance(schema, list):
        return [with_exact_numbers(part, f"{path}/{index}") for index, part in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    found = {name: _part(name, value, f"{path}/{name}") for name, value in schema.items()}
    for place, value in _constants(schema):
        if abs(value) > _LARGEST or int(float(value)) != value:
            raise GrammarError(
                f"the JSON schema is refused at {path}/{place}: {value} is an integer over 2^53 that cannot be kept "
                "exactly; make it a string"
            )
    kinds = types_of(schema)
    if "integer" in kinds and set(kinds) <= {"integer", "null"}:
        _narrow(found, path, nullable="null" in kinds)
    return found


def _part(name: str, value: Any, path: str) -> Any:
    if name in DATA:
        return value
    if name in MAPS and isinstance(value, dict):
        return {key: with_exact_numbers(part, f"{path}/{key}") for key, part in value.items()}
    return with_exact_numbers(value, path)


def _constants(schema: dict[str, Any]) -> Iterator[tuple[str, int]]:
    listed = schema.get("enum")
    values = [("const", schema.get("const")), *(("enum", one) for one in (listed if isinstance(listed, list) else ()))]
    yield from ((place, value) for place, value in values if type(value) is int)


def _narrow(schema: dict[str, Any], path: str, *, nullable: bool) -> None:
    """Make the bounds of an integer floats, and list its multiples."""
    low = _bound(schema, "minimum", 1)
    high = _bound(schema, "maximum", -1)
    if low is not None and high is not None and low > high:
        raise GrammarError(
            f"the JSON schema is refused at {path}: none of the integers that it allows can be kept exactly; those "
            "up to 2^53 can, so make it a string"
        )
    step = schema.get("multipleOf")
    if type(step) is not int or step <= 0 or low is None or high is None or {"enum", "const"} & schema.keys():
        return
    multiples = range(-(-low // step) * step, high + 1, step)
    if multiples and (multiples[-1] - multiples[0]) // step < _MOST_MULTIPLES:  # a longer one may have no `len`
        for name in ("type", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            schema.pop(name, None)
        schema["enum"] = [*multiples, *([None] if nullable else [])]


def _bound(schema: dict[str, Any], name: str, inward: Literal[1, -1]) -> int | None:
    """The bound, exclusive ones included, as the next integer inside that is a float; it is written to the schema.

    `name` is minimum, with 1 for `inward`, or maximum, with -1.
    """
    exclusive = "exclusive" + name.capitalize()
    inclusive, outside = schema.get(name), schema.get(exclusive)
    bounds: list[int] = []
    if _is_finite(inclusive):
        bounds.append(math.ceil(inclusive) if inward == 1 else math.floor(inclusive))
    if _is_finite(outside):
        bounds.append(math.floor(outside) + 1 if inward == 1 else math.ceil(outside) - 1)
    if not bounds:
        return None
    found = max(bounds) if inward == 1 else min(bounds)
    if abs(found) <= _EXACT:
        return found
    kept = min(max(found, -_LARGEST), _LARGEST)
    if int(float(kept)) != kept:
        nearest = float(kept)
        kept = int(nearest if (int(nearest) - kept) * inward > 0 else math.nextafter(nearest, inward * math.inf))
    schema.pop(exclusive, None)
    schema[name] = kept
    return kept


def _is_finite(value: Any) -> TypeGuard[int | float]:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


class Relaxation(Enum):
    """What of a schema is rewritten, because llguidance does not compile it as it is."""

    NONE = auto()
    EXACT = auto()  # all that can be said in another way, is
    ROUGH = auto()  # more is left out, and checked


CHECKED = "x-checked"  # the keyword under which a rewritten schema has the given one; a caller's is dropped
OPTIONS = "x-guidance"  # the keyword under which llguidance reads its options
_TOO_DEEP = "the JSON schema is nested too deeply; the limit is some 100 levels"
_SEPARATORS = {"item_separator": ",", "key_separator": ":"}


def schema_text(constraint: JsonSchemaConstraint, relaxation: Relaxation = Relaxation.NONE) -> str:
    """The schema as JSON text for llguidance.

    Args:
        constraint: the schema.
        relaxation: what is rewritten. A rewritten schema says under `CHECKED` what answers must be checked with.

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
    schema.pop(CHECKED, None)
    try:
        return json.dumps({**_relaxed(schema, constraint, relaxation), OPTIONS: options})
    except RecursionError as error:
        raise GrammarError(_TOO_DEEP) from error


def _relaxed(schema: Any, constraint: JsonSchemaConstraint, relaxation: Relaxation) -> dict[str, Any]:
    is_rough = relaxation is Relaxation.ROUGH
    if relaxation is not Relaxation.NONE:
        schema = relax(schema, is_rough=is_rough).schema
        if schema is False:
            raise GrammarError("the JSON schema allows no value; give one that allows some")
    if relaxation is not Relaxation.NONE or constraint.original is not None:
        original = constraint.original or constraint.schema
        if checks_of(original, is_rough) is not None:
            return {**schema, CHECKED: {"schema": json.loads(original), "is_rough": is_rough}}
    return dict(schema)


def checks_of_grammar(grammar: str) -> AnswerChecks | None:
    """What answers must be checked with besides this grammar, which `grammar_text` wrote; None for nothing."""
    schema = schema_of_grammar(grammar) if CHECKED in grammar else None
    checked = None if schema is None else schema.get(CHECKED)
    return checked and checks_of(json.dumps(checked["schema"]), checked["is_rough"])


def schema_of_grammar(grammar: str) -> Any:
    """The JSON schema that `grammar_text` wrote as this grammar; None for Lark."""
    if not grammar.startswith(JSON_PREFIX):
        return None
    try:
        return json.loads(grammar.removeprefix(JSON_PREFIX))
    except ValueError:  # Lark that a caller wrote
        return None


def _read(text: str) -> dict[str, Any]:
    check_length("the JSON schema", len(text), MAX_SCHEMA)
    try:
        schema = with_exact_numbers(
            json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        )
    except RecursionError as error:
        raise GrammarError(_TOO_DEEP) from error
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


SimpleConstraint = LarkConstraint | JsonSchemaConstraint
JSON_PREFIX = "start: %json "
_TEMPERATURE = re.compile(r"^\s*[?!]?\w+\s*\[[^\]\n]*\btemperature\b", re.MULTILINE)


def grammar_text(constraint: SimpleConstraint, relaxation: Relaxation = Relaxation.NONE) -> str:
    """The constraint's grammar in Lark, not yet compiled.

    Raises:
        GrammarError: the constraint is too large or cannot be written as a grammar; the message says why.
    """
    match constraint:
        case LarkConstraint(text=text):
            grammar = _lark(text)
        case JsonSchemaConstraint():
            grammar = JSON_PREFIX + schema_text(constraint, relaxation)
    return _encodable(grammar)


def _lark(text: str) -> str:
    check_length("the grammar", len(text), MAX_LARK)
    if _TEMPERATURE.search(text):
        raise GrammarError("the grammar sets a temperature, which would be ignored; set the request's own")
    # vLLM reads a grammar as GBNF unless llguidance recognizes it as Lark.
    return text if is_lark_syntax(text) else f"%llguidance {{}}\n{text}"


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"the constraint has half a surrogate pair, {text[error.start]!a}; remove it") from error
    return text
