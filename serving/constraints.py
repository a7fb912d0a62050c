"""What an answer must match: Lark, a JSON Schema, a regular expression, or one of several texts.

A request has one of these, or None for free text; `serving.grammar` makes llguidance's grammars of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LarkConstraint:
    """A grammar.

    Args:
        text: Lark in llguidance's dialect.
        is_trusted: this package's own code wrote it, with bounds of its own, so it is not compiled for trial first.
    """

    text: str
    is_trusted: bool = False


@dataclass(frozen=True, slots=True)
class JsonSchemaConstraint:
    """A JSON value that a schema describes, its properties in the schema's order.

    Args:
        schema: the schema as JSON text. `true` or `{}` allow any value.
        item_separator: regular expression of what stands between items and between properties.
        key_separator: regular expression of what stands between a property's name and its value.
        original: for a narrowed schema the one that it was made of, if an answer may have to be checked with it.
    """

    schema: str
    item_separator: str = ", "
    key_separator: str = ": "
    original: str | None = None


@dataclass(frozen=True, slots=True)
class RegexConstraint:
    """A text that a regular expression matches as a whole.

    Args:
        pattern: an expression in the syntax of Rust's regex crate (no look-around, no back-references).
    """

    pattern: str


@dataclass(frozen=True, slots=True)
class ChoiceConstraint:
    """One of several texts.

    Args:
        choices: the texts, at least one and none empty.
    """

    choices: tuple[str, ...]


Constraint = LarkConstraint | JsonSchemaConstraint | RegexConstraint | ChoiceConstraint
