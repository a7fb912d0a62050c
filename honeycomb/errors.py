"""What can be wrong with a question, a column list or an answer.

Owns: the tree. Every message names the value, the limit and the remedy.

    HoneycombError
    ├── InputError               the caller must change `nlq` or `cols`
    └── QueryError               the answer is not a query that may be returned
        ├── QuerySyntaxError     it does not parse
        ├── QueryRuleError       it parses and breaks a rule of the query
        └── UnknownColumnError   it names a column that was not given
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class HoneycombError(Exception):
    """Base of all errors of this package."""


class InputError(HoneycombError):
    """An input is wrong.

    Args:
        name: the input, "nlq" or "cols".
        problem: what is wrong with it, the limit included.
        remedy: what to do about it.
    """

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        super().__init__(f"{name}: {problem}; {remedy}")
        self.name = name
        self.problem = problem
        self.remedy = remedy


class QueryError(HoneycombError):
    """An answer is not a valid query."""


class QuerySyntaxError(QueryError):
    """The answer is neither JSON nor a Python literal."""


class QueryRuleError(QueryError):
    """The answer breaks a rule of the query."""


class UnknownColumnError(QueryError):
    """The answer names a column that is not in the list given.

    Args:
        column: the name that was used.
        place: where in the query, such as `filters[0].column`.
        columns: the names given; the nearest of them are told.
    """

    def __init__(self, column: str, place: str, columns: Sequence[str]) -> None:
        self.column = column
        self.place = place
        self.nearest = tuple(difflib.get_close_matches(column[:255], columns, n=3, cutoff=0.5))
        known = f"{len(columns)} column{'s' if len(columns) != 1 else ''} given"
        hint = f"nearest: {', '.join(map(shorten, self.nearest))}" if self.nearest else "none is near"
        super().__init__(f"{place}: unknown column {shorten(column)}, not one of the {known}; {hint}")


def shorten(value: object, limit: int = 60) -> str:
    """`repr(value)`, cut in the middle so that a hostile value cannot flood a message."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return repr(text) if isinstance(value, str) else text
