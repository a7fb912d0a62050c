"""Rewrites answers as the grammar of a schema task forces them: the schema's order of keys, one form of separators."""

from __future__ import annotations

from typing import Any, Final

from serving.grammar import TextCheck
from serving.grammar.schema_tree import Node
from tasks.json_text import write_answer
from tasks.property_order import in_schema_order
from tasks.schema.task import answer_constraint

# Those of json.dumps, which models have read most. With no optional space, the grammar forces more tokens.
ITEM_SEPARATOR: Final = ", "
KEY_SEPARATOR: Final = ": "


class AnswerWriter:
    """Writes answers of a schema.

    Args:
        schema: of the answers; its order of properties is theirs.

    Raises:
        TaskFileError: the schema cannot be compiled into a grammar.
    """

    def __init__(self, schema: Node) -> None:
        self._schema = schema
        self._check = TextCheck(answer_constraint(schema, ITEM_SEPARATOR, KEY_SEPARATOR))

    def write(self, value: Any) -> str:
        """The text of an answer; numbers keep their digits."""
        return write_answer(in_schema_order(self._schema, value), ITEM_SEPARATOR, KEY_SEPARATOR)

    def fault(self, text: str) -> str | None:
        """What the grammar does not allow in the text of an answer; None if it allows all of it."""
        return self._check.fault(text)
