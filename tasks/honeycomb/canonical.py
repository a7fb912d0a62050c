"""Write a query in its canonical form, and compare queries by meaning.

canonical_json(query)  ->  '{"breakdowns": ["name"], "calculations": [{"op": "COUNT"}]}'
"""

from __future__ import annotations

import json
from typing import Any

from tasks.honeycomb.clauses import Filter, Having, Order
from tasks.honeycomb.ops import DEFAULT_TIME_RANGE, EMIT_STEPS, NOT_SORTABLE
from tasks.honeycomb.query_type import Query, time_span

_EXACT_FLOAT = 2.0**53  # a larger whole float may stand for several integers


def canonical(query: Query) -> Query:
    """The same query without default values.

    A granularity above a tenth of the time range is lowered to that, because some of Honeycomb's data sources refuse
    more. Floats without a fraction become integers.
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


def ordered(query: Query) -> Query:
    """The query with an order of its groups: if it has none, by the first calculation that can be, descending."""
    first = next((one for one in query.calculations if one.op != NOT_SORTABLE), None)
    if not query.breakdowns or query.orders or first is None:
        return query
    return query.model_copy(update={"orders": (Order(op=first.op, column=first.column, order="descending"),)})


def canonical_json(query: Query) -> str:
    """The JSON text that predict returns and that models are trained to write."""
    return json.dumps(_json_value(canonical(query)), ensure_ascii=False)


def comparison_key(query: Query) -> str:
    """A text that is equal for two queries with the same meaning: the order of filters and havings does not matter."""
    value = _json_value(canonical(query))
    for unordered in ("filters", "havings"):
        if unordered in value:
            value[unordered] = sorted(json.dumps(clause, sort_keys=True) for clause in value[unordered])
    return json.dumps(value, sort_keys=True)


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


def _json_value(query: Query) -> dict[str, Any]:
    """The query as dicts and lists in key order, without defaults; calculations and order directions are kept."""
    value = query.model_dump(mode="json", exclude_none=True)
    if query.filter_combination == "AND":
        del value["filter_combination"]
    return {key: part for key, part in value.items() if part != []}
