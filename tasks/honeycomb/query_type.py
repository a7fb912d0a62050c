"""A query as an immutable pydantic type that satisfies all rules; `tasks.honeycomb.query` parses its text."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from tasks.honeycomb import rules
from tasks.honeycomb.query_parts import QueryParts


class Query(QueryParts):
    """A query that also satisfies the rules between its parts."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.check_query(self)
        return self
