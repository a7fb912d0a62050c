"""Scores of the fields of JSON values: right, given and expected."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tasks.confidence import values_by_pointer
from tasks.evaluation.json_answers import canonical, compare_fields, fields, right_fields

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab.", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def sums(reference: Any, answer: Any) -> tuple[int, ...]:
    counts = compare_fields(reference, fields(answer))
    return tuple(sum(column) for column in zip(*counts.values(), strict=True))


@given(values)
def test_a_value_has_all_its_own_fields(value: Any) -> None:
    right, given, expected = sums(value, value)
    assert right == given == expected >= 1


@given(values, values)
def test_the_number_of_equal_fields_is_symmetric(first: Any, second: Any) -> None:
    right, given, expected = sums(first, second)
    assert (right, expected, given) == sums(second, first)
    assert right <= min(given, expected)
    if canonical(first) == canonical(second):
        assert right == given == expected


@given(st.lists(values, max_size=5), st.randoms(use_true_random=False))
def test_the_position_in_a_list_does_not_matter(items: list[Any], rng: random.Random) -> None:
    shuffled = rng.sample(items, len(items))
    assert fields(items) == fields(shuffled)


def test_fields_by_example() -> None:
    reference = {
        "vendor": "Ink",
        "total": 12.0,
        "lines": [{"sku": "A", "count": 2}, {"sku": "B", "count": 2}],
        "tags": [],
    }
    answer = {"total": 12, "vendor": "Inc", "lines": [{"sku": "B", "count": 2}], "note": None}
    assert compare_fields(reference, fields(answer)) == {
        "vendor": (0, 1, 1),
        "total": (1, 1, 1),
        "lines[].sku": (1, 1, 2),
        "lines[].count": (1, 1, 2),
        "tags": (0, 0, 1),
        "note": (0, 1, 0),
    }


def test_values_that_only_look_alike_are_different() -> None:
    for first, second in ((1, "1"), (1, True), (None, "null"), ([], {}), ({}, None), ([[]], [])):
        assert canonical(first) != canonical(second)
        assert not fields(first) & fields(second)
    assert canonical({"b": 1, "a": [2.0]}) == canonical({"a": [2], "b": 1.0})


@given(values, values)
def test_every_field_of_an_answer_is_right_or_wrong(answer: Any, reference: Any) -> None:
    found = right_fields(answer, reference)
    assert set(found) == {pointer for pointer, _ in values_by_pointer(answer)}
    assert all(right_fields(answer, answer).values())
    if all(found.values()):
        assert fields(answer) == fields(reference)


def test_right_fields_by_example() -> None:
    reference = {"vendor": "Ink", "total": 12.0, "lines": [{"sku": "A"}, {"sku": "B"}, {"sku": "B"}]}
    answer = {"vendor": "Inc", "total": 12, "lines": [{"sku": "B"}, {"sku": "B"}, {"sku": "B"}, {"code": "A"}]}
    wrong = {pointer for pointer, is_right in right_fields(answer, reference).items() if not is_right}
    assert wrong == {"/vendor", "/lines", "/lines/2/sku", "/lines/3", "/lines/3/code"}
