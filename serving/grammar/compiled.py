"""Checks and compiles constraints, in milliseconds, or up to a second for one that is refused: use a thread."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer

from serving.constraints import (
    ChoiceConstraint,
    Constraint,
    JsonSchemaConstraint,
    LarkConstraint,
    RegexConstraint,
)
from serving.errors import GrammarError
from serving.grammar.grammar_limits import parser_limits
from serving.grammar.grammar_text import grammar_text
from serving.grammar.guard import shared_guard

CONSTRAINT_NAMES: dict[type[Constraint], str] = {
    LarkConstraint: "the grammar",
    JsonSchemaConstraint: "the JSON schema",
    RegexConstraint: "the regular expression",
    ChoiceConstraint: "the choice",
}


def check_constraint(constraint: Constraint) -> str:
    """The constraint's grammar as text, after checking that it compiles within the limits.

    Raises:
        GrammarError: it does not compile; the message says why and, for a JSON schema, where.
    """
    grammar = grammar_text(constraint)
    if isinstance(constraint, LarkConstraint) and constraint.is_trusted:
        return grammar
    is_schema = isinstance(constraint, JsonSchemaConstraint)
    shared_guard().check(grammar, name=CONSTRAINT_NAMES[type(constraint)], is_schema=is_schema)
    return grammar


def compile_constraint(constraint: Constraint, vocabulary: LLTokenizer) -> LLMatcher:
    """A matcher that is at the start of the constraint.

    Raises:
        GrammarError: see `check_constraint`; or the grammar is too large for this vocabulary.
    """
    matcher = LLMatcher(vocabulary, check_constraint(constraint), log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()  # refuses a grammar whose first step is too expensive, and warms up that step
    if matcher.is_error():
        reason = matcher.get_error().partition("\n")[0]
        raise GrammarError(f"{CONSTRAINT_NAMES[type(constraint)]} does not compile: {reason}; simplify it")
    return matcher
