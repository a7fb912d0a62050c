"""Reads the answers of the fake model."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.honeycomb.query import parse_query


def asked(output: Iterable[str], *columns: str) -> str:
    """The question that the model repeats in its answer, which is a text or its pieces."""
    return parse_query("".join(output), columns or ["a", "b"]).filters[0].value
