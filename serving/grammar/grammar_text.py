"""Writes a constraint as a grammar in llguidance's dialect of Lark, which vLLM accepts too."""

from __future__ import annotations

import json
import re

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import is_lark_syntax

from serving.constraints import (
    ChoiceConstraint,
    Constraint,
    JsonSchemaConstraint,
    LarkConstraint,
    RegexConstraint,
)
from serving.errors import GrammarError
from serving.grammar.grammar_limits import MAX_CHOICES, MAX_CHOICES_TOGETHER, MAX_LARK, MAX_PATTERN, check_length
from serving.grammar.schema_text import schema_text

JSON_PREFIX = "start: %json "
_TEMPERATURE = re.compile(r"^\s*[?!]?\w+\s*\[[^\]\n]*\btemperature\b", re.MULTILINE)


def grammar_text(constraint: Constraint) -> str:
    """The constraint's grammar in Lark, not yet compiled.

    Raises:
        GrammarError: the constraint is too large or cannot be written as a grammar; the message says why.
    """
    match constraint:
        case LarkConstraint(text=text):
            grammar = _lark(text)
        case RegexConstraint(pattern=pattern):
            check_length("the regular expression", len(pattern), MAX_PATTERN)
            grammar = json.loads(LLMatcher.grammar_from_regex(_encodable(pattern)))["grammars"][0]["lark_grammar"]
        case ChoiceConstraint(choices=choices):
            grammar = _choice(choices)
        case JsonSchemaConstraint():
            grammar = JSON_PREFIX + schema_text(constraint)
    return _encodable(grammar)


def _lark(text: str) -> str:
    check_length("the grammar", len(text), MAX_LARK)
    if _TEMPERATURE.search(text):
        raise GrammarError("the grammar sets a temperature, which would be ignored; set the request's own")
    # vLLM reads a grammar as GBNF unless llguidance recognizes it as Lark.
    return text if is_lark_syntax(text) else f"%llguidance {{}}\n{text}"


def _choice(choices: tuple[str, ...]) -> str:
    if not choices or "" in choices:
        raise GrammarError("a choice needs at least one text, and none may be empty")
    if len(choices) > MAX_CHOICES:
        raise GrammarError(f"the choice has {len(choices):,} texts, and the limit is {MAX_CHOICES:,}; give fewer")
    check_length("the choice", sum(map(len, choices)), MAX_CHOICES_TOGETHER)
    # One terminal, because llguidance parses alternatives of a rule in parallel and allows only 2,000.
    return "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, choices))


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"the constraint has half a surrogate pair, {text[error.start]!a}; remove it") from error
    return text
