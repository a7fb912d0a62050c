"""Marks follow their characters through every operation, and no other character gets one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.text.marked_text import MAX_CHARACTERS, MarkedText, TextTooLongError, join, marks_of

OWN = "AB<|\n"  # letters, punctuation and white space of the template
OTHER = "xy>;\t"  # of a caller

texts = st.text(alphabet=OWN + OTHER, max_size=12)
# Operations of templates on texts: separators of the template and of callers, all limits and slices.
separators = st.text(alphabet=OWN + OTHER, min_size=1, max_size=2)
limits = st.integers(-1, 3)
bounds = st.none() | st.integers(-13, 13)


def mixed(text: str) -> MarkedText:
    """The text with the letters of OWN marked."""
    return join(MarkedText.own(c) if c in OWN else c for c in text)


def assert_marks(found: str, expected: str) -> None:
    """Check that the text is that of `str`, with marks on exactly the characters of OWN."""
    assert str.__str__(found) == expected
    assert isinstance(found, MarkedText)
    assert list(marks_of(found)) == [c in OWN for c in expected]


@given(texts, separators, separators, limits)
def test_methods_that_give_text(text: str, old: str, new: str, count: int) -> None:
    marked = mixed(text)
    assert_marks(marked.replace(old, mixed(new), count), text.replace(old, new, count))
    for chars in (None, old):
        assert_marks(marked.strip(chars), text.strip(chars))
        assert_marks(marked.lstrip(chars), text.lstrip(chars))
        assert_marks(marked.rstrip(chars), text.rstrip(chars))
    assert_marks(marked.removeprefix(old), text.removeprefix(old))
    assert_marks(marked.removesuffix(old), text.removesuffix(old))
    assert_marks(marked + mixed(old), text + old)
    assert_marks(mixed(old).join([mixed(new), marked, mixed(new)]), old.join([new, text, new]))
    assert_marks(marked * count, text * count)
    assert_marks(count * marked, text * count)
    assert_marks(str(marked), text)


@given(texts, separators, limits, st.booleans())
def test_methods_that_give_parts(text: str, separator: str, limit: int, keep: bool) -> None:
    marked = mixed(text)
    pairs = [(marked.splitlines(keep), text.splitlines(keep)), (list(marked), list(text))]
    pairs += [(marked.partition(separator), text.partition(separator))]
    pairs += [(marked.rpartition(separator), text.rpartition(separator))]
    for chosen in (None, separator):
        pairs += [(marked.split(chosen, limit), text.split(chosen, limit))]
        pairs += [(marked.rsplit(chosen, limit), text.rsplit(chosen, limit))]
    for found, expected in pairs:
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_marks(one, other)


@given(texts, bounds, bounds, st.sampled_from([None, 1, 2, -1, -3]))
def test_slices_and_characters(text: str, start: int | None, stop: int | None, step: int | None) -> None:
    marked = mixed(text)
    assert_marks(marked[start:stop:step], text[start:stop:step])
    for index in range(-len(text), len(text)):
        assert_marks(marked[index], text[index])
    with pytest.raises(IndexError):
        marked[len(text)]


@given(st.text(max_size=8), st.text(max_size=8))
def test_case_keeps_marks_or_drops_all(own: str, other: str) -> None:
    marked = MarkedText.own(own) + other
    for name in ("upper", "lower", "title", "capitalize"):
        changed, expected = getattr(marked, name)(), getattr(own + other, name)()
        assert changed == expected
        if len(changed) == len(own + other):
            assert marks_of(changed) == marks_of(marked)
        else:
            assert not any(marks_of(changed))


@pytest.mark.parametrize(
    ("make", "marks"),
    [
        (lambda own: "x" + own, [0, 1]),
        (lambda own: own + "x", [1, 0]),
        (lambda own: own.join(["x", "y"]), [0, 1, 0]),
        (lambda own: own.replace("A", "xy"), [0, 0]),
        (lambda own: MarkedText(own), [1]),
        (lambda own: MarkedText("A"), [0]),
        # Operations that are not followed give text without marks
        (lambda own: own.replace("", "x"), [0, 0, 0]),
        (lambda own: "x".join([own, own]), [0, 0, 0]),
        (lambda own: f"{own}x", [0, 0]),
        (lambda own: own.center(3), [0, 0, 0]),
        (lambda own: own.translate({65: "x"}), [0]),
    ],
)
def test_text_from_other_operations_has_no_marks(make: Callable[[MarkedText], str], marks: list[int]) -> None:
    assert list(marks_of(make(MarkedText.own("A")))) == marks


def test_operations_that_do_not_change_it_treat_it_as_a_str() -> None:
    own = MarkedText.own("user")
    assert own == "user" and hash(own) == hash("user") and {"user": 1}[own] == 1
    assert "se" in own and own.startswith("us") and isinstance(own, str)


def test_texts_that_grow_are_refused_before_they_are_made() -> None:
    half = MarkedText.own("x") * (MAX_CHARACTERS // 2)
    assert len(half + half) == MAX_CHARACTERS
    for grow in (lambda: half + half + "x", lambda: half * 3, lambda: 3 * half, lambda: half.join(["x"] * 4)):
        with pytest.raises(TextTooLongError, match="over 4,000,000 characters"):
            grow()
