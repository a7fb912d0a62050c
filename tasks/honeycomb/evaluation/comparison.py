"""Compares two queries: whether they mean the same, and part by part.

Of the parts, a filter counts as three items: its column, its op on that column, and its value on that column. So a
wrong value does not hide a right column.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tasks.evaluation.cases import Counts
from tasks.evaluation.json_answers import right_fields
from tasks.honeycomb.canonical import canonical_json, comparison_key
from tasks.honeycomb.ops import DEFAULT_TIME_RANGE
from tasks.honeycomb.query_type import Query

FREE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (name,) for name in Query.model_fields},
    "time_range": ("time_range", "start_time", "end_time"),
}
_SINGLE: Final = {"in": "=", "not-in": "!="}
_TIME: Final = ("start_time", "end_time", "granularity", "compare_time_offset_seconds")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """All queries that an expert accepts as the answer to a question: at least one, with `free` fields of any value."""

    queries: tuple[Query, ...]
    free: frozenset[str]

    def accepts(self, query: Query) -> bool:
        """Whether the query means the same as one of the accepted ones, apart from the free fields."""
        return _key(query, self.free) in {_key(accepted, self.free) for accepted in self.queries}

    def right_fields(self, query: Query) -> dict[str, bool]:
        """Whether each field of a query is right, free ones left out; of several accepted queries, by the closest."""
        answer, *wanted = (_without(one, self.free) for one in (query, *self.queries))
        if self.accepts(query):
            wanted = [answer]
        return max((right_fields(answer, one) for one in wanted), key=lambda found: sum(found.values()))


def _without(query: Query, free: frozenset[str]) -> dict[str, Any]:
    left_out = {part for name in free for part in FREE_FIELDS[name]}
    return {name: part for name, part in json.loads(canonical_json(query)).items() if name not in left_out}


def check_free(names: Iterable[str]) -> None:
    """Check the names of fields that may have any value.

    Raises:
        ValueError: a query has no such field.
    """
    if unknown := set(names) - set(FREE_FIELDS):
        raise ValueError(f"free names {sorted(unknown)}; the fields are {sorted(FREE_FIELDS)}")


def _key(query: Query, free: frozenset[str]) -> str:
    """A text that is equal for two queries with the same meaning.

    Numbers equal their strings, `in` with one value equals `=`, and only the order of `orders` matters.
    """
    key = json.loads(comparison_key(query))
    for field in (part for name in free for part in FREE_FIELDS[name]):
        key.pop(field, None)
    filters = [_plain_filter(json.loads(text)) for text in key.get("filters", [])]
    key["filters"] = sorted(json.dumps(clause, sort_keys=True) for clause in filters)
    if len(filters) < 2:
        key.pop("filter_combination", None)
    for unordered in ("calculations", "breakdowns"):
        if unordered in key:
            key[unordered] = sorted(json.dumps(part, sort_keys=True) for part in key[unordered])
    return json.dumps(key, sort_keys=True)


def _plain_filter(clause: dict[str, Any]) -> dict[str, Any]:
    value = clause.get("value")
    if isinstance(value, list):
        texts = sorted(map(_text, value))
        if len(texts) == 1:
            return {**clause, "op": _SINGLE[clause["op"]], "value": texts[0]}
        return {**clause, "value": texts}
    return clause if value is None else {**clause, "value": _text(value)}


def _text(value: Any) -> str:
    """A value as text, so that 5 and 5.0 equal "5", and true equals "true"; different strings stay different."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def compare_parts(reference: Query, answer: Query | None) -> Counts:
    """Numbers of right, given and expected items by part; an invalid answer gives none."""
    expected = _take_apart(reference)
    given = _take_apart(answer) if answer is not None else {part: Counter[str]() for part in expected}
    return {part: ((own & given[part]).total(), given[part].total(), own.total()) for part, own in expected.items()}


def _take_apart(query: Query) -> dict[str, Counter[str]]:
    """The query as multisets of comparable items; explicit and implicit default values are equal."""
    filters = query.filters
    time = [(name, getattr(query, name)) for name in _TIME if getattr(query, name) is not None]
    if query.start_time is None or query.end_time is None:
        time.append(("time_range", query.time_range or DEFAULT_TIME_RANGE))
    operators: list[tuple[str, str]] = [(f.column, f.op) for f in filters]
    if query.filter_combination == "OR":
        operators.append(("OR", "OR"))
    return {
        "calculations": _items((c.op, c.column) for c in query.calculations),
        "filter_columns": _items(f.column for f in filters),
        "filter_ops": _items(operators),
        "filter_values": _items((f.column, f.value) for f in filters if f.value is not None),
        "breakdowns": _items(query.breakdowns),
        "orders": _items((o.op, o.column, o.order) for o in query.orders),
        "havings": _items((h.calculate_op, h.column, h.op, h.value) for h in query.havings),
        "limit": _items([] if query.limit is None else [query.limit]),
        "time": _items(time),
    }


def _items(values: Iterable[Any]) -> Counter[str]:
    return Counter(json.dumps(value, ensure_ascii=False) for value in values)
