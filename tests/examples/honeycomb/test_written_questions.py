"""Written questions: valid queries whose values stand in the question, with other columns around them each time."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from examples.honeycomb.datagen.dataset import SPLITS, generate
from examples.honeycomb.datagen.example_questions import Example
from examples.honeycomb.datagen.written_questions import WRITTEN, with_usual_order, written_lists
from tasks.honeycomb.canonical import canonical_json
from tasks.honeycomb.prompt import check_nlq
from tasks.honeycomb.query import parse_query

KINDS = [
    "aggregate",
    "counts",
    "groups",
    "having",
    "keyvalue",
    "logic",
    "time",
    "top",
    "vague",
    "values",
    "verbatim",
    "words",
]
FAMILIES = [  # of what the default model got wrong in use (docs/data.md)
    "conventions",
    "counters",
    "error_text",
    "filler",
    "granularity",
    "http_methods",
    "percent",
    "placeholder",
    "tags",
    "units",
]
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


HELD_OUT = WRITTEN / "held_out"


def made(seed: int = 0, repeats: int = 1, folder=WRITTEN) -> list[list[Example]]:
    return list(written_lists(seed=seed, per_set=8, repeats=repeats, folder=folder))


def flat(lists: list[list[Example]]) -> list[Example]:
    return [example for examples in lists for example in examples]


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return flat(made() + made(folder=HELD_OUT))


def texts(query: dict[str, Any]) -> Iterator[str]:
    for clause in query.get("filters", ()):
        value = clause.get("value")
        yield from (v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str))


def test_every_query_is_canonical_and_names_only_given_columns(examples) -> None:
    for example in examples:
        text = json.dumps(example.query, ensure_ascii=False)
        assert canonical_json(parse_query(text, example.cols)) == text
        assert check_nlq(example.nlq) == example.nlq


def test_a_text_in_a_filter_stands_in_the_question(examples) -> None:
    """The default model's grammar can only copy texts from the question, and HTTP methods in upper case."""
    for example in examples:
        for text in texts(example.query):
            assert text in (example.nlq.upper() if text in METHODS else example.nlq), example.nlq


def test_there_are_thousands_of_every_kind_and_none_twice(examples) -> None:
    counts = Counter(example.category for example in examples)
    assert counts.keys() == {f"written {kind}" for kind in KINDS + FAMILIES}
    assert min(counts.values()) > 90 and min(counts[f"written {kind}"] for kind in KINDS) > 2500 // len(KINDS)
    assert max(Counter(example.nlq.lower() for example in examples).values()) <= 5  # "slow requests", "errors", …
    assert len({example.nlq.lower() for example in examples}) > 0.99 * len(examples)


def test_each_repeat_has_every_question_with_other_columns() -> None:
    once, thrice = made(folder=HELD_OUT), made(repeats=3, folder=HELD_OUT)
    assert Counter(e.nlq for e in flat(thrice)) == Counter([e.nlq for e in flat(once)] * 3)
    lists: dict[str, set[tuple[str, ...]]] = {example.nlq: set() for example in flat(thrice)}
    for example in flat(thrice):
        lists[example.nlq].add(example.cols)
    assert sum(len(found) > 1 for found in lists.values()) > 0.9 * len(lists)


def test_the_questions_of_a_list_share_its_columns_in_one_order() -> None:
    for examples in made():
        assert len(examples) <= 8
        assert len({example.cols for example in examples}) == 1
        assert len(set(examples[0].cols)) == len(examples[0].cols)


def test_a_seed_gives_the_same_examples() -> None:
    assert made(seed=4, folder=HELD_OUT) == made(seed=4, folder=HELD_OUT)
    assert made(seed=4, folder=HELD_OUT) != made(seed=5, folder=HELD_OUT)


def test_held_out_datasets_are_not_trained_on() -> None:
    splits = {split.name: split for split in SPLITS}
    test = list(generate(splits["test_written"], seed=0, examples=1000, seen=set()))
    train = list(generate(splits["train"], seed=0, examples=1000, seen=set()))
    assert {e.category.split()[0] for e in test} == {"written"}
    assert len(test) == len(flat(made(folder=HELD_OUT)))
    assert not {e.nlq for e in test if len(e.nlq.split()) > 3} & {e.nlq for e in train}


@pytest.mark.parametrize(
    ("query", "orders"),
    [
        ({"calculations": [{"op": "COUNT"}]}, None),
        (
            {"calculations": [{"op": "COUNT"}], "breakdowns": ["a"]},
            [{"op": "COUNT", "order": "descending"}],
        ),
        (
            {"calculations": [{"op": "HEATMAP", "column": "b"}, {"op": "AVG", "column": "b"}], "breakdowns": ["a"]},
            [{"op": "AVG", "column": "b", "order": "descending"}],
        ),
        ({"calculations": [{"op": "HEATMAP", "column": "b"}], "breakdowns": ["a"]}, None),
        (
            {"calculations": [{"op": "COUNT"}], "breakdowns": ["a"], "orders": [{"column": "a", "order": "ascending"}]},
            [{"column": "a", "order": "ascending"}],
        ),
    ],
)
def test_groups_are_ordered_as_in_all_other_training_data(query: dict[str, Any], orders: object) -> None:
    assert with_usual_order(query).get("orders") == orders
