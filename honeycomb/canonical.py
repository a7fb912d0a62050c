"""One way to write a query.

Owns: the canonical query, its JSON, and equality of meaning. Knows nothing of columns given or
of the form a model writes.

    canonical_json(query)  ->  '{"breakdowns": ["name"], "calculations": [{"op": "COUNT"}]}'
"""

from __future__ import annotations

import json
from typing import Any

from honeycomb.clauses import Filter, Having
from honeycomb.ops import DEFAULT_TIME_RANGE, EMIT_STEPS
from honeycomb.rules import time_span
from honeycomb.types import Query

_EXACT_FLOAT = 2.0**53  # a larger whole float may stand for several integers


def canonical(query: Query) -> Query:
    """The same query with defaults left out.

    A granularity over a tenth of the range is lowered to it, because some of Honeycomb's sources
    refuse more; whole floats become integers.
    """
    span = time_span(query)
    no_ends = query.start_time is None and query.end_time is None
    return query.model_copy(
        update={
            "filters": tuple(_canonical_filter(f) for f in query.filters),
            "havings": tuple(_canonical_having(h) for h in query.havings),
            "time_range": None if no_ends and query.time_range == DEFAULT_TIME_RANGE else query.time_range,
            "granularity": min(query.granularity or 0, span // EMIT_STEPS) or None,
        }
    )


def canonical_json(query: Query) -> str:
    """The text that predict returns and that models are trained to write."""
    return json.dumps(_plain(canonical(query)), ensure_ascii=False)


def comparison_key(query: Query) -> str:
    """Equal for two queries that mean the same: filters and havings in any order."""
    plain = _plain(canonical(query))
    for unordered in ("filters", "havings"):
        if unordered in plain:
            plain[unordered] = sorted(json.dumps(clause, sort_keys=True) for clause in plain[unordered])
    return json.dumps(plain, sort_keys=True)


def _canonical_filter(clause: Filter) -> Filter:
    value = clause.value
    if isinstance(value, tuple):
        return clause.model_copy(update={"value": tuple(_canonical_number(v) for v in value)})
    return clause.model_copy(update={"value": _canonical_number(value)})


def _canonical_having(clause: Having) -> Having:
    return clause.model_copy(update={"value": _canonical_number(clause.value)})


def _canonical_number(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_FLOAT:
        return int(value)
    return value


def _plain(query: Query) -> dict[str, Any]:
    """Dicts and lists in key order, defaults absent; calculations and each order's direction always there."""
    plain = query.model_dump(mode="json", exclude_none=True)
    if query.filter_combination == "AND":
        del plain["filter_combination"]
    return {key: value for key, value in plain.items() if value != []}
