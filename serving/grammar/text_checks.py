"""Says whether a text is of a format or matches a pattern, as llguidance's grammars mean it.

llguidance's regular expressions take linear time. Python's may take exponential time, so a caller's patterns are not
given to it.
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer

from serving.errors import GrammarError
from serving.grammar.grammar_limits import parser_limits

# Formats of JSON Schema that llguidance does not know, as patterns which all of their texts match.
FORMATS: Final = {
    "uri-reference": r"^[A-Za-z0-9\-._~:/?@!$&'()*+,;=%]*(#[A-Za-z0-9\-._~:/?@!$&'()*+,;=%]*)?$",
    "iri": r"^[A-Za-z][A-Za-z0-9+.\-]*:[^\x00-\x20<>\"{}|\\^`]*$",
    "iri-reference": r"^[^\x00-\x20<>\"{}|\\^`]*$",
    "uri-template": r"^([^\x00-\x20<>\"{}|\\^`]|\{[^\x00-\x20<>\"{}\\^`]+\})*$",
    "json-pointer": r"^(/([^~/]|~[01])*)*$",
    "relative-json-pointer": r"^(0|[1-9][0-9]*)(#|(/([^~/]|~[01])*)*)$",
    "idn-email": r"^[^@\s]+@[^@\s]+$",
}
_LOOKAHEAD: Final = re.compile(r"\^\(\?!")


def is_known_format(name: str) -> bool:
    """Whether a format is enforced; JSON Schema lets unknown ones be annotations."""
    return name in FORMATS or is_built_in(name)


def is_built_in(name: str) -> bool:
    """Whether llguidance knows a format."""
    return _matcher(json.dumps({"type": "string", "format": name})) is not None


def is_known_pattern(pattern: str) -> bool:
    """Whether llguidance can compile a pattern."""
    return _matcher(json.dumps({"type": "string", "pattern": pattern})) is not None


def is_checkable(pattern: str) -> bool:
    """Whether `matches` takes a pattern."""
    if is_known_pattern(pattern):
        return True
    split = without_lookahead(pattern)
    return split is not None and all(map(is_known_pattern, split))


def is_of_format(name: str, text: str) -> bool:
    """Whether a text is of a known format."""
    if (pattern := FORMATS.get(name)) is not None:
        return matches(pattern, text)
    return _follows({"type": "string", "format": name}, text)


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern that is checkable occurs in a text."""
    if is_known_pattern(pattern):
        return _follows({"type": "string", "pattern": pattern}, text)
    split = without_lookahead(pattern)
    assert split is not None, "the pattern is checkable"
    refused, rest = split
    return matches(rest, text) and not matches(refused, text)


def without_lookahead(pattern: str) -> tuple[str, str] | None:
    """For `^(?!no)rest` the patterns `^(?:no)` and `^rest`; None for others."""
    if not _LOOKAHEAD.match(pattern):
        return None
    depth, place, is_class = 1, 4, False
    while place < len(pattern) and depth:
        character = pattern[place]
        if character == "\\":
            place += 1
        elif is_class:
            is_class = character != "]"
        elif character == "[":
            is_class = True
        elif character in "()":
            depth += 1 if character == "(" else -1
        place += 1
    if depth:
        return None
    return f"^(?:{pattern[4 : place - 1]})", f"^{pattern[place:]}"


def _follows(schema: dict[str, Any], text: str) -> bool:
    matcher = _matcher(json.dumps(schema))
    assert matcher is not None, "the caller has asked whether it is known"
    written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f").encode(errors="replace")
    copy = matcher.deep_copy()
    count = copy.try_consume_tokens(list(written))
    if copy.is_error():
        raise GrammarError(f"the JSON schema: a text is too long to be checked with {json.dumps(schema)[:200]}")
    return count == len(written) and bool(copy.is_accepting())


@lru_cache(1024)
def _matcher(schema: str) -> LLMatcher | None:
    matcher = LLMatcher(_bytes(), f"start: %json {schema}", log_level=0, limits=parser_limits())
    return None if matcher.is_error() else matcher


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")
