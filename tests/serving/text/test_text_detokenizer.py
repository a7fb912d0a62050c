"""Streamed text: deltas join to the whole text, have whole characters, and contain no stop string."""

from __future__ import annotations

import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import InvalidRequestError
from serving.text import IncrementalDetokenizer, Tokenizer
from tests.tiny_tokenizers import byte_level, metaspace, random_text

TOKENIZERS = {"byte-level": byte_level(), "metaspace": metaspace()}


def stream(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = (), step: int = 1) -> list[str]:
    """The deltas of a stream, the last one from the flush."""
    detokenizer = IncrementalDetokenizer(tokenizer, stop)
    deltas = [detokenizer.push(ids[i : i + step]) for i in range(0, len(ids), step)]
    return [*deltas, detokenizer.flush()]


def cut(text: str, stop: tuple[str, ...]) -> str:
    """The rule for stop strings, implemented naively: the first complete one, and the longest at that position."""
    ends = [(text.find(s) + len(s), -len(s)) for s in stop if s in text]
    return text[: min(ends)[0] + min(ends)[1]] if ends else text


def test_deltas_of_ten_thousand_texts_join_to_the_whole_or_to_what_a_stop_string_ends(
    tokenizer: Tokenizer,
) -> None:
    rng = random.Random(1)
    for _ in range(10_000):
        text = random_text(rng)
        ids = tokenizer.encode(text, add_bos=False)
        deltas = stream(tokenizer, ids, step=rng.randint(1, 3))
        assert "".join(deltas) == tokenizer.decode(ids)
        assert tokenizer.decode(ids).removeprefix(" ") == text.removeprefix(" ")
        assert "\ufffd" not in "".join(deltas) or "\ufffd" in text
        starts = [rng.randrange(len(text) + 1) for _ in range(rng.randrange(3))]
        stop = tuple((text[at : at + rng.randint(1, 5)] or "a") + rng.choice(("", "", "\0")) for at in starts)
        assert "".join(stream(tokenizer, ids, stop, rng.randint(1, 3))) == cut(tokenizer.decode(ids), stop)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_ids_at_all_stream_to_their_decoding(kind: str, data: st.DataObject) -> None:
    """A model may generate incomplete characters; the stream then shows what the whole text shows."""
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert "".join(stream(tokenizer, ids, step=data.draw(st.integers(1, 5)))) == tokenizer.decode(ids)


def test_a_character_of_several_tokens_appears_at_once(tokenizer: Tokenizer) -> None:
    for char in "🙂𝄞界":
        ids = tokenizer.encode(char, add_bos=False)
        shown = [delta for delta in stream(tokenizer, ids) if delta.strip()]
        assert [delta.strip() for delta in shown] == [char]


def test_an_incomplete_character_is_shown_only_at_the_end() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    half = tokenizer.encode("\U000117af", add_bos=False)[:-1]
    assert len(half) >= 1
    deltas = stream(tokenizer, half)
    assert "".join(deltas[:-1]) == "" and deltas[-1] == "\ufffd" == tokenizer.decode(half)


# --- stop strings --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_text_ends_before_a_stop_string_at_any_position(tokenizer: Tokenizer, step: int) -> None:
    text = 'aab {"op": "COUNT"} 你好🙂 aabaac ### end'
    ids = tokenizer.encode(text, add_bos=False)
    whole = tokenizer.decode(ids)
    for start, length in itertools.product(range(len(whole)), (1, 2, 3, 7, 40)):
        stop = (whole[start : start + length],)
        deltas = stream(tokenizer, ids, stop, step)
        assert "".join(deltas) == cut(whole, stop)


@given(
    text=st.text(alphabet="ab🙂", max_size=30),
    stop=st.lists(st.text(alphabet="ab🙂", min_size=1, max_size=5), min_size=1, max_size=4),
    step=st.integers(1, 6),
)
@settings(max_examples=1000, deadline=None)
def test_overlapping_stop_strings_follow_the_rule(text: str, stop: list[str], step: int) -> None:
    """With few letters, stop strings overlap with themselves and each other."""
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode(text)
    detokenizer = IncrementalDetokenizer(tokenizer, stop)
    shown = "".join(detokenizer.push(ids[i : i + step]) for i in range(0, len(ids), step))
    expected = cut(text, tuple(stop))
    held_back = max((len(s) for s in stop), default=1) - 1
    assert expected.startswith(shown) and len(expected) - len(shown) <= held_back
    assert shown + detokenizer.flush() == expected
    assert (detokenizer.stopped_by is not None) == any(s in text for s in stop)


def test_text_that_could_become_a_stop_string_is_held_back_until_it_cannot() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    detokenizer = IncrementalDetokenizer(tokenizer, ["###"])
    assert detokenizer.push(tokenizer.encode("a##")) == "a"
    assert detokenizer.push(tokenizer.encode("b")) == "##b"
    assert detokenizer.push(tokenizer.encode("##")) == ""
    assert detokenizer.flush() == "##"


def test_nothing_is_shown_after_a_stop_string() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    detokenizer = IncrementalDetokenizer(tokenizer, ["!"])
    assert detokenizer.push(tokenizer.encode("yes! no")) == "yes"
    assert detokenizer.stopped_by == "!"
    assert detokenizer.push(tokenizer.encode("more")) == detokenizer.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        IncrementalDetokenizer(TOKENIZERS["byte-level"], ["x", ""])


def test_the_cost_of_a_token_does_not_grow_with_the_stream() -> None:
    """Counted in Python calls, not in time: both halves of a long stream take the same number."""
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("ab" * 4000)
    detokenizer = IncrementalDetokenizer(tokenizer, ["ab" * 50 + "c"])

    def calls(part: list[int]) -> int:
        count = 0

        def profile(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(profile)
        for token_id in part:
            detokenizer.push([token_id])
        sys.setprofile(None)
        return count

    half = len(ids) // 2
    assert calls(ids[half:]) <= calls(ids[:half]) * 1.1
