"""N-gram tables: what they say, that they are the same for the same texts, and that they stay small."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from serving.errors import WeightsError
from serving.ngrams import START, Context, NgramTable, RecentNgrams


def learn(recent: RecentNgrams, text: list[int]) -> None:
    for i, token in enumerate(text):
        recent.learn(Context(text[:i]), token)


TOKENS = st.lists(st.integers(0, 60), max_size=30)


@given(TOKENS, TOKENS)
def test_a_key_depends_on_the_last_tokens_only(before, after):
    orders = (1, 2, 4, 8)
    keys = Context(before + after).keys(orders)
    for order, key in zip(orders, keys, strict=False):
        if order <= len(after):
            assert key == Context(after[-order:]).keys((order,))[0]


@given(TOKENS, TOKENS, TOKENS)
def test_what_was_added_and_cut_leaves_no_trace(kept, cut, added):
    context = Context([*kept, *cut])
    context.cut(len(kept))
    context.extend(added)
    assert len(context) == len(kept) + len(added)
    assert context.keys((1, 2, 3, 6)) == Context([*kept, *added]).keys((1, 2, 3, 6))


def test_keys_tell_sequences_apart():
    sequences = {tuple(random.Random(i).choices(range(50), k=4)) for i in range(20_000)}
    assert len({Context(sequence).keys((4,))[0] for sequence in sequences}) == len(sequences)


def test_the_longest_match_comes_first_and_the_most_frequent_token_before_others():
    table = NgramTable.build([[1, 2, 3], [1, 2, 3], [1, 2, 4], [9, 2, 5], [9, 2, 5]], orders=(1, 2))
    after_1_2 = [token for token, _ in table.successors(Context([1, 2]))]
    assert after_1_2[:2] == [3, 4]
    assert next(token for token, _ in table.successors(Context([9, 2]))) == 5
    assert [token for token, _ in table.successors(Context([START]))] == [1, 9]


def test_the_rarest_are_left_out_until_the_rest_fits():
    texts = [[1, 2]] * 2 + [[3, 4]] * 3 + [[5, 6]] * 4
    sizes = [len(NgramTable.build(texts, orders=(1,), max_ngrams=most)) for most in (9, 4, 3, 2)]
    assert sizes == [4, 4, 3, 2]  # START is in all of them, and each text's first token
    kept = NgramTable.build(texts, orders=(1,), max_ngrams=2)
    assert [token for token, _ in kept.successors(Context([5]))] == [6]
    assert not list(kept.successors(Context([1])))


def test_shares_say_how_often_and_are_never_certain():
    table = NgramTable.build([[1, 2]] * 3 + [[1, 3]], orders=(1,))
    shares = dict(table.successors(Context([1])))
    assert shares[2] == 255 * 3 // 5
    assert 0 < shares[3] < shares[2] < 255


def test_what_was_seen_once_is_left_out():
    assert list(NgramTable.build([[1, 2, 3]], orders=(1, 2)).successors(Context([1, 2]))) == []


def test_the_order_of_texts_changes_nothing_and_a_file_brings_the_same_table_back(tmp_path):
    rng = random.Random(0)
    texts = [rng.choices(range(20), k=15) for _ in range(200)]
    NgramTable.build(texts).save(tmp_path / "a.safetensors")
    NgramTable.build(texts[::-1]).save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    built, loaded = NgramTable.build(texts), NgramTable.load(tmp_path / "a.safetensors")
    for text in texts:
        assert list(built.successors(Context(text[:7]))) == list(loaded.successors(Context(text[:7])))


def test_an_empty_table_is_a_table(tmp_path):
    NgramTable.build([]).save(tmp_path / "t.safetensors")
    assert len(NgramTable.load(tmp_path / "t.safetensors")) == 0


def test_another_file_is_refused_by_name(tmp_path):
    garbage = tmp_path / "garbage.safetensors"
    garbage.write_bytes(b"x" * 100)
    other = tmp_path / "other.safetensors"
    save_file({}, other)
    for path in (garbage, other):
        with pytest.raises(WeightsError, match=path.name):
            NgramTable.load(path)


def test_recent_answers_count_and_the_latest_wins():
    recent = RecentNgrams(orders=(1, 2), capacity=100)
    learn(recent, [1, 2, 3])
    learn(recent, [1, 2, 4])
    assert list(recent.successors(Context([1, 2]))) == [(4, 2), (4, 1)]


def test_recent_memory_is_bounded_and_forgets_the_oldest():
    recent = RecentNgrams(orders=(1, 2, 3), capacity=50)
    for i in range(1000):
        text = [3 * i, 3 * i + 1, 3 * i + 2]
        learn(recent, text)
        assert len(recent) <= 2 * (50 + 6)
    assert not list(recent.successors(Context([0, 1])))
    assert list(recent.successors(Context([2997, 2998]))) != []


def test_what_followed_may_differ_from_what_is_matched():
    recent = RecentNgrams(orders=(1,), capacity=10)
    recent.learn(Context([5]), 106)
    assert list(recent.successors(Context([5]))) == [(106, 1)]
