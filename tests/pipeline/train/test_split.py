"""Inputs that are nearly the same are in one part, and the split is the same each time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.answer_format.errors import ExamplesError
from pipeline.train.example_files import Part
from pipeline.train.split import InputKeys, Likeness, Split, held_out_size, num_alike, split

WORDS = ["red", "green", "blue", "one", "two", "Three", "café"]


def split_of(texts: Sequence[str], given: Sequence[Part | None] | None = None) -> Split:
    keys = InputKeys()
    for text in texts:
        keys.add(text)
    given = given or [None] * len(texts)
    return split(keys, given, frozenset(part for part in given if part is not None))


@pytest.mark.parametrize(("count", "size"), [(10, 2), (50, 10), (200, 40), (1_000, 100), (100_000, 500)])
def test_held_out_parts_are_a_tenth_or_a_fifth_of_few(count: int, size: int) -> None:
    assert held_out_size(count) == size


def test_near_duplicates_stay_together() -> None:
    texts = [f"{a} {b} {i % 4}" for i in range(4) for a in "abcdefgh" for b in "pqrstuvw"]
    texts += [text.upper().replace(" ", ",  ") + "!" for text in texts]
    found = split_of(texts)
    assert found.likeness is Likeness.DIGITS_ASIDE
    parts: dict[str, set[Part | None]] = {}
    for text, part in zip(texts, found.parts, strict=True):
        letters = "".join(character for character in text.lower() if character.isalpha())
        parts.setdefault(letters, set()).add(part)
    assert len(parts) == 64
    assert all(len(of) == 1 for of in parts.values())
    assert found.count(Part.VALIDATION) == found.count(Part.TEST) == held_out_size(len(texts)) // 8 * 8
    assert num_alike(found.order) == len(texts) - 64


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), min_size=10, max_size=80))
def test_no_input_is_in_two_parts_and_the_order_of_lines_does_not_matter(texts: list[str]) -> None:
    try:
        found = split_of(texts)
    except ExamplesError as error:
        assert "so much alike" in str(error)
        return
    by_text = dict(zip((text.lower() for text in texts), found.parts, strict=True))
    assert [by_text[text.lower()] for text in texts] == list(found.parts)
    assert all(found.count(part) for part in Part)
    assert found.count(None) == 0
    backwards = split_of(texts[::-1])
    assert list(backwards.parts) == list(found.parts)[::-1]


def test_digits_count_where_inputs_differ_in_nothing_else() -> None:
    found = split_of([f"what is {i} plus {i * 7}?" for i in range(50)])
    assert found.likeness is Likeness.CASE_ASIDE
    assert [found.count(part) for part in Part] == [30, 10, 10]
    of_files = [Part.TRAIN] * 30 + [Part.VALIDATION] * 10 + [Part.TEST] * 10
    assert list(split_of([f"what is {i % 49} plus {i % 49 * 7}?" for i in range(50)], of_files).parts) == [
        None,
        *of_files[1:],
    ]


def test_parts_with_their_own_file_stay_and_training_loses_what_is_like_them() -> None:
    train, test = [f"word{c} is {d}" for c in "abcdefghij" for d in "klmno"], ["wordA is k", "new", "new 1"]
    found = split_of([*train, *test], [*[Part.TRAIN] * 50, *[Part.TEST] * 3])
    assert found.parts[0] is None
    assert list(found.parts[-3:]) == [Part.TEST] * 3
    assert [found.count(part) for part in Part] == [49 - held_out_size(49), held_out_size(49), 3]
    given = [*[Part.TRAIN] * 50, Part.VALIDATION, Part.VALIDATION, Part.TEST]
    both = split_of([*train, "new", "other", "new"], given)
    assert list(both.parts[-3:]) == [None, Part.VALIDATION, Part.TEST]
    with pytest.raises(ExamplesError, match="no example is left for validation"):
        split_of([*train, "new", "New", "new"], given)


def test_too_few_or_too_equal_examples_are_refused() -> None:
    with pytest.raises(ExamplesError, match="at least 10"):
        split_of(["a"] * 9)
    with pytest.raises(ExamplesError, match="so much alike"):
        split_of(["same"] * 40)
