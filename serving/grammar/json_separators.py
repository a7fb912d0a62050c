"""Checks the regular expressions of separators in JSON."""

from __future__ import annotations

from functools import lru_cache

from llguidance import LLMatcher, LLTokenizer

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
