"""What an answer must match: Lark, a JSON Schema, or calls of functions.

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
class CallFormat:
    """How a model writes calls of functions behind its text: marker, opening, name, middle, arguments, closing.

    Args:
        marker: the text with which the first call begins; empty where an answer is either a text or a call.
        opening: what stands between the marker and the first name.
        middle: what stands between a name and its arguments.
        closing: what stands behind the arguments of the last call.
        between: what stands between arguments and the next name; None where an answer has one call.
        item_separator: what stands in arguments between items and between properties.
        key_separator: what stands in arguments between a property's name and its value.
        tokens: words of these texts that are one token: each word, its id, and the text that the token is shown as.
    """

    marker: str
    opening: str
    middle: str
    closing: str
    between: str | None
    item_separator: str = ", "
    key_separator: str = ": "
    tokens: tuple[tuple[str, int, str], ...] = ()

    def shown(self) -> CallFormat:
        """The format of the text that an engine gives, in which some tokens are not shown."""

        def seen(text: str) -> str:
            for word, _, shown in self.tokens:
                text = text.replace(word, shown)
            return text

        between = None if self.between is None else seen(self.between)
        parts = seen(self.marker), seen(self.opening), seen(self.middle), seen(self.closing), between
        return CallFormat(*parts, self.item_separator, self.key_separator)


CALL = "<tool_call>"  # with which a shown call begins, whatever the model writes; no text that may have calls has it

# Models that were not trained for their template's format write calls as plain JSON, often in a code block. Such a call
# begins with these regular expressions, and with a function's name and a quote between them.
PLAIN_BEGIN = r'\{[ \n]*"name":[ ]?"'
PLAIN_MIDDLE = r',[ \n]*"(arguments|parameters)":'


@dataclass(frozen=True, slots=True)
class CallsConstraint:
    """A text, or one or several calls of functions, or both, the text first.

    Args:
        format: how calls are written.
        functions: the functions' names, and what their arguments must match.
        is_single: whether there is at most one call.
        text: what a text must match, which then has no calls behind it; None for any text.
    """

    format: CallFormat
    functions: tuple[tuple[str, JsonSchemaConstraint], ...]
    is_single: bool = False
    text: JsonSchemaConstraint | None = None


Constraint = LarkConstraint | JsonSchemaConstraint | CallsConstraint
