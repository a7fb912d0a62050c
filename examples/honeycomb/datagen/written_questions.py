"""Read the questions that were written one by one for training, and vary the columns around them.

`written/*.jsonl` has a file for each dataset of a team: its columns in the first line, then a question a line, as
{"k": kind, "q": question, "a": query}. A query there has no `orders` where groups are ordered as usual.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from examples.honeycomb.datagen.example_questions import Example
from tasks.honeycomb.canonical import canonical_json
from tasks.honeycomb.query import parse_query
from tasks.honeycomb.query_type import Query

WRITTEN = Path(__file__).with_name("written")
_WHOLE_SHARE = 0.25  # of the groups of questions that get all columns of their dataset
_SHUFFLED_SHARE = 0.3
_FEWEST = 8  # columns of a list


def written_lists(*, seed: int, per_set: int, repeats: int, folder: Path = WRITTEN) -> Iterator[list[Example]]:
    """The examples of one column list after the other; a list has the columns that its questions need, and others.

    Args:
        seed: the same seed gives the same examples.
        per_set: questions of a list, at most.
        repeats: how often each question is asked, each time among other questions and columns.
        folder: of the files.
    """
    rng = Random(f"{seed}/written")
    groups = [group for number in range(repeats) for group in _groups(rng, folder, per_set, number)]
    rng.shuffle(groups)
    yield from groups


def _groups(rng: Random, folder: Path, per_set: int, number: int) -> Iterator[list[Example]]:
    for path in sorted(folder.glob("*.jsonl")):
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        columns, rows = json.loads(first), [json.loads(line) for line in lines]
        rng.shuffle(rows)
        for start in range(0, len(rows), per_set):
            group = rows[start : start + per_set]
            chosen = _some_columns(rng, columns, {name for row in group for name in _names(row["a"])})
            yield [_example(row, chosen, f"written-{path.stem}-{number}-{start}") for row in group]


def _some_columns(rng: Random, columns: Sequence[str], needed: set[str]) -> tuple[str, ...]:
    """The needed columns and some of the others, sometimes in another order."""
    chosen = list(columns)
    if rng.random() >= _WHOLE_SHARE:
        others = [name for name in columns if name not in needed]
        most = len(others)
        kept = set(rng.sample(others, rng.randint(min(most, max(0, _FEWEST - len(needed))), most)))
        chosen = [name for name in columns if name in needed or name in kept]
    if rng.random() < _SHUFFLED_SHARE:
        rng.shuffle(chosen)
    return tuple(chosen)


def _names(query: dict[str, Any]) -> Iterator[str]:
    """The columns that a query names."""
    yield from query.get("breakdowns", ())
    for part in ("calculations", "filters", "orders", "havings"):
        yield from (clause["column"] for clause in query.get(part, ()) if "column" in clause)


def _example(row: dict[str, Any], columns: tuple[str, ...], set_id: str) -> Example:
    query = parse_query(json.dumps(with_usual_order(row["a"])), columns)
    return Example(
        nlq=row["q"],
        cols=columns,
        query=json.loads(canonical_json(query)),
        category=f"written {row['k']}",
        features=_features(query),
        templates=(),
        column_set=set_id,
        vocabularies=(),
    )


def with_usual_order(query: dict[str, Any]) -> dict[str, Any]:
    """The query with its groups ordered by the first calculation that can be ordered, unless it has an order."""
    if query.get("orders") or not query.get("breakdowns"):
        return query
    ordered = [calculation for calculation in query["calculations"] if calculation["op"] != "HEATMAP"]
    return {**query, "orders": [{**ordered[0], "order": "descending"}]} if ordered else query


def _features(query: Query) -> tuple[str, ...]:
    present = {
        "breakdown": query.breakdowns,
        "time": query.time_range or query.start_time or query.end_time,
        "or": query.filter_combination == "OR",
        "limit": query.limit,
        "order": query.orders,
        "granularity": query.granularity,
        "compare": query.compare_time_offset_seconds,
    }
    return tuple(sorted(name for name, value in present.items() if value))
