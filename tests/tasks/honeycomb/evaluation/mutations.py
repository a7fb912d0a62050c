"""Queries with one change each, to test whether execution finds it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from tasks.honeycomb.canonical import canonical, comparison_key
from tasks.honeycomb.ops import CALCULATION_OPS, COMPARE_OFFSETS, OPS_WITHOUT_COLUMN
from tasks.honeycomb.query_type import Query

QueryDict = dict[str, Any]
Mutation = Callable[[QueryDict, Sequence[str], random.Random], QueryDict | None]

_FILTER_OPS = {
    "=": ["!=", "contains"],
    "!=": ["="],
    ">": ["<", ">=", "<="],
    ">=": [">", "<"],
    "<": [">", "<="],
    "<=": ["<", ">"],
    "starts-with": ["contains", "does-not-start-with", "="],
    "ends-with": ["contains", "starts-with"],
    "contains": ["starts-with", "does-not-contain", "="],
    "exists": ["does-not-exist"],
    "does-not-exist": ["exists"],
    "in": ["not-in"],
    "not-in": ["in"],
    "does-not-contain": ["contains"],
    "does-not-start-with": ["starts-with"],
    "does-not-end-with": ["ends-with"],
}


def mutants(query: Query, columns: Sequence[str], seed: int) -> Iterator[tuple[str, Query]]:
    """Each applicable mutation once, with its name. Left out: invalid ones, and equivalent ones.

    A mutant is equivalent if it has the same comparison key, or if it changes only how a result of a
    single row is sorted or cut (a query without breakdowns), or only HEATMAP's absence of order.
    """
    draw = random.Random(seed)
    for name, mutate in MUTATIONS.items():
        changed = mutate(query.model_dump(mode="json", exclude_none=True), columns, draw)
        if changed is None:
            continue
        try:
            mutant = canonical(Query.model_validate(changed))
        except ValidationError:
            continue
        if comparison_key(mutant) != comparison_key(query) and not _equivalent(name, query):
            yield name, mutant


def _equivalent(name: str, query: Query) -> bool:
    return name in ("order", "drop order", "limit", "drop limit") and not query.breakdowns


def _other_column(taken: str, columns: Sequence[str], draw: random.Random) -> str | None:
    others = [c for c in columns if c != taken]
    return draw.choice(others) if others else None


def _change_calculation(query: QueryDict, index: int, new: QueryDict) -> QueryDict:
    """The calculation, and the orders and havings that refer to it."""
    old = query["calculations"][index]
    for order in query.get("orders", []):
        if (order.get("op"), order.get("column")) == (old["op"], old.get("column")):
            order.pop("column", None)
            order.update(new)
    for having in query.get("havings", []):
        if (having["calculate_op"], having.get("column")) == (old["op"], old.get("column")):
            having.pop("column", None)
            having.update({"calculate_op": new["op"]} | {k: v for k, v in new.items() if k == "column"})
    query["calculations"][index] = new
    return query


def _calculation_op(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    index = draw.randrange(len(query["calculations"]))
    old = query["calculations"][index]
    ops = [op for op in CALCULATION_OPS if op != old["op"] and (op in OPS_WITHOUT_COLUMN) == ("column" not in old)]
    return _change_calculation(query, index, old | {"op": draw.choice(ops)})


def _calculation_column(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    indices = [i for i, c in enumerate(query["calculations"]) if "column" in c]
    if not indices:
        return None
    index = draw.choice(indices)
    old = query["calculations"][index]
    other = _other_column(old["column"], columns, draw)
    return _change_calculation(query, index, old | {"column": other}) if other else None


def _edit_filter(field: str) -> Mutation:
    def mutate(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
        filters = query.get("filters", [])
        if not filters:
            return None
        clause = draw.choice(filters)
        if field == "column":
            clause["column"] = _other_column(clause["column"], columns, draw)
        elif field == "op":
            clause["op"] = draw.choice(_FILTER_OPS[clause["op"]])
        elif "value" in clause:
            clause["value"] = _other_value(clause["value"], draw)
        return query

    return mutate


def _other_value(value: Any, draw: random.Random) -> Any:
    if isinstance(value, list):
        return value[:-1] if len(value) > 1 else [_other_value(value[0], draw)]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return draw.choice([value * 10, value + 1, value * 2 + 1])
    return draw.choice([value[:-1] or "q", value + "s", value.swapcase()])


def _drop(field: str) -> Mutation:
    def mutate(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
        clauses = query.get(field)
        if not clauses:
            return None
        clauses.pop(draw.randrange(len(clauses)))
        return query

    return mutate


def _breakdown(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    names = query.get("breakdowns", [])
    others = [c for c in columns if c not in names]
    if not names or not others:
        return None
    index, new = draw.randrange(len(names)), draw.choice(others)
    for order in query.get("orders", []):
        if "op" not in order and order["column"] == names[index]:
            order["column"] = new
    names[index] = new
    return query


def _add_breakdown(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    others = [c for c in columns if c not in query.get("breakdowns", [])]
    return query | {"breakdowns": [*query.get("breakdowns", []), draw.choice(others)]} if others else None


def _add_filter(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict:
    return query | {"filters": [*query.get("filters", []), {"column": draw.choice(columns), "op": "exists"}]}


def _combination(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    if len(query.get("filters", [])) < 2:
        return None
    return query | {"filter_combination": "AND" if query["filter_combination"] == "OR" else "OR"}


def _order(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    if not query.get("orders"):
        return None
    order = query["orders"][0]
    order["order"] = "ascending" if order["order"] == "descending" else "descending"
    return query


def _limit(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    return (
        query | {"limit": max(1, draw.choice([query["limit"] - 1, query["limit"] // 2]))}
        if query.get("limit")
        else None
    )


def _without(field: str) -> Mutation:
    def mutate(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
        return {k: v for k, v in query.items() if k != field} if query.get(field) else None

    return mutate


def _having(field: str) -> Mutation:
    def mutate(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
        if not query.get("havings"):
            return None
        having = query["havings"][0]
        if field == "op":
            having["op"] = {">": "<", ">=": ">", "<": ">", "<=": "<", "=": "!=", "!=": "="}[having["op"]]
        else:
            having["value"] = draw.choice([having["value"] * 10, having["value"] * 1.05, having["value"] * 2])
        return query

    return mutate


def _time_range(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    if query.get("start_time") or query.get("end_time"):
        return None
    old = query.get("time_range", 7200)
    new = draw.choice([old * 2, max(60, old // 2), old * 7, 3600 if old != 3600 else 86400])
    query.pop("granularity", None)
    return query | {"time_range": new}


def _granularity(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    return query | {"granularity": query["granularity"] * 2} if query.get("granularity") else None


def _compare(query: QueryDict, columns: Sequence[str], draw: random.Random) -> QueryDict | None:
    old = query.get("compare_time_offset_seconds")
    if old is None:
        return None
    return query | {"compare_time_offset_seconds": draw.choice([o for o in COMPARE_OFFSETS if o != old])}


MUTATIONS: dict[str, Mutation] = {
    "calculation op": _calculation_op,
    "calculation column": _calculation_column,
    "drop calculation": _drop("calculations"),
    "filter column": _edit_filter("column"),
    "filter op": _edit_filter("op"),
    "filter value": _edit_filter("value"),
    "drop filter": _drop("filters"),
    "add filter": _add_filter,
    "combination": _combination,
    "breakdown": _breakdown,
    "drop breakdown": _drop("breakdowns"),
    "add breakdown": _add_breakdown,
    "order": _order,
    "drop order": _without("orders"),
    "limit": _limit,
    "drop limit": _without("limit"),
    "having op": _having("op"),
    "having value": _having("value"),
    "drop having": _without("havings"),
    "time range": _time_range,
    "granularity": _granularity,
    "compare": _compare,
    "drop compare": _without("compare_time_offset_seconds"),
}
