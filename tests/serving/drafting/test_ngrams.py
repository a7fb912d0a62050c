"""N-gram tables return the right successors, are deterministic, and stay small."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from serving.drafting.ngrams import START, Context, NgramTable, RecentNgrams
from serving.errors import WeightsError


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
def test_truncated_tokens_have_no_effect(kept, cut, added):
    context = Context([*kept, *cut])
    context.truncate(len(kept))
    context.extend(added)
    assert len(context) == len(kept) + len(added)
    assert context.keys((1, 2, 3, 6)) == Context([*kept, *added]).keys((1, 2, 3, 6))


def test_different_sequences_have_different_keys():
    sequences = {tuple(random.Random(i).choices(range(50), k=4)) for i in range(20_000)}
    assert len({Context(sequence).keys((4,))[0] for sequence in sequences}) == len(sequences)


def test_successors_are_ordered_by_length_of_the_match_then_by_frequency():
    table = NgramTable.build([[1, 2, 3], [1, 2, 3], [1, 2, 4], [9, 2, 5], [9, 2, 5]], orders=(1, 2))
    after_1_2 = [token for token, _ in table.successors(Context([1, 2]))]
    assert after_1_2[:2] == [3, 4]
    assert next(token for token, _ in table.successors(Context([9, 2]))) == 5
    assert [token for token, _ in table.successors(Context([START]))] == [1, 9]


def test_the_rarest_ngrams_are_dropped_until_the_table_fits():
    texts = [[1, 2]] * 2 + [[3, 4]] * 3 + [[5, 6]] * 4
    sizes = [len(NgramTable.build(texts, orders=(1,), max_ngrams=most)) for most in (9, 4, 3, 2)]
    assert sizes == [4, 4, 3, 2]  # START, and each text's first token
    kept = NgramTable.build(texts, orders=(1,), max_ngrams=2)
    assert [token for token, _ in kept.successors(Context([5]))] == [6]
    assert not list(kept.successors(Context([1])))


def test_confidences_are_relative_frequencies_below_1():
    table = NgramTable.build([[1, 2]] * 3 + [[1, 3]], orders=(1,))
    confidences = dict(table.successors(Context([1])))
    assert confidences[2] == 255 * 3 // 5
    assert 0 < confidences[3] < confidences[2] < 255


def test_ngrams_that_occur_once_are_not_stored():
    assert list(NgramTable.build([[1, 2, 3]], orders=(1, 2)).successors(Context([1, 2]))) == []


def test_the_order_of_texts_does_not_matter_and_a_file_restores_the_table(tmp_path):
    rng = random.Random(0)
    texts = [rng.choices(range(20), k=15) for _ in range(200)]
    NgramTable.build(texts).save(tmp_path / "a.safetensors")
    NgramTable.build(texts[::-1]).save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    built, loaded = NgramTable.build(texts), NgramTable.load(tmp_path / "a.safetensors")
    for text in texts:
        assert list(built.successors(Context(text[:7]))) == list(loaded.successors(Context(text[:7])))


def test_an_empty_table_can_be_saved_and_loaded(tmp_path):
    NgramTable.build([]).save(tmp_path / "t.safetensors")
    assert len(NgramTable.load(tmp_path / "t.safetensors")) == 0


def test_a_file_of_another_kind_is_refused_by_name(tmp_path):
    garbage = tmp_path / "garbage.safetensors"
    garbage.write_bytes(b"x" * 100)
    other = tmp_path / "other.safetensors"
    save_file({}, other)
    for path in (garbage, other):
        with pytest.raises(WeightsError, match=path.name):
            NgramTable.load(path)


def test_the_latest_successor_wins():
    recent = RecentNgrams(orders=(1, 2), capacity=100)
    learn(recent, [1, 2, 3])
    learn(recent, [1, 2, 4])
    assert list(recent.successors(Context([1, 2]))) == [(4, 2), (4, 1)]


def test_recent_ngrams_are_bounded_and_the_oldest_are_dropped():
    recent = RecentNgrams(orders=(1, 2, 3), capacity=50)
    for i in range(1000):
        text = [3 * i, 3 * i + 1, 3 * i + 2]
        learn(recent, text)
        assert len(recent) <= 2 * (50 + 6)
    assert not list(recent.successors(Context([0, 1])))
    assert list(recent.successors(Context([2997, 2998]))) != []


def test_a_successor_need_not_be_in_the_context():
    recent = RecentNgrams(orders=(1,), capacity=10)
    recent.learn(Context([5]), 106)
    assert list(recent.successors(Context([5]))) == [(106, 1)]
