"""The errors of a model's answer.

QueryError               the answer is not a valid query
├── QuerySyntaxError     it does not parse
├── QueryRuleError       it violates a rule of the query
└── UnknownColumnError   it names an unknown column
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tasks.errors import OutputError


class QueryError(OutputError):
    """An answer is not a valid query."""


class QuerySyntaxError(QueryError):
    """The answer is neither JSON nor a Python literal."""


class QueryRuleError(QueryError):
    """The answer violates a rule of the query."""


class UnknownColumnError(QueryError):
    """The answer names a column that is not among the given ones.

    Args:
        column: the unknown name.
        place: its place in the query, such as `filters[0].column`.
        columns: the given names; the message has the nearest of them.
    """

    def __init__(self, column: str, place: str, columns: Sequence[str]) -> None:
        self.nearest = tuple(difflib.get_close_matches(column[:255], columns, n=3, cutoff=0.5))
        known = f"{len(columns)} column{'s' if len(columns) != 1 else ''} given"
        hint = f"nearest: {', '.join(map(shorten, self.nearest))}" if self.nearest else "none is near"
        super().__init__(f"{place}: unknown column {shorten(column)}, not one of the {known}; {hint}")


def shorten(value: object, limit: int = 60) -> str:
    """`repr(value)`, shortened in the middle to about `limit` characters for messages."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return repr(text) if isinstance(value, str) else text
