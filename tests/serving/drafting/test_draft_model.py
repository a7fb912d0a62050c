"""A draft model reads the prompt after a marker, each token once, and tokens again only after a rejection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.drafting.draft_model import DraftModel, split_prompt
from serving.weights.draft_weights import DRAFT_MODEL, MAX_TOKENS
from tests.draft_models import write_draft_model

MARK, LATER = (7, 8), (9,)


class RecordingKernel:
    """Stores the token ids in its cache, and returns the first candidates as the likeliest."""

    vocab_size = 500

    def __init__(self) -> None:
        self.candidates: list[int] = []
        self.num_read = 0
        self.num_confident = 0  # tokens to generate: the first candidate, repeated
        self.calls: list[tuple[int, int, bool]] = []

    def new_cache(self):
        self.cache = np.full((MAX_TOKENS, 1), -1.0, np.float32)
        return self.cache

    def tokens(self) -> list[int]:
        """What the latest cache holds."""
        return [int(token) for token in self.cache[:, 0] if token >= 0]

    def run(self, cache, start: int, ids: Sequence[int], candidates, allowed=None, *, bidirectional=False):
        if allowed is not None:
            assert not ids
            return [token for token in self.candidates if allowed[token // 32] >> token % 32 & 1], [1.0]
        assert ids
        cache[start : start + len(ids), 0] = ids
        self.calls.append((start, len(ids), bidirectional))
        self.num_read += len(ids)
        self.candidates = candidates.tolist()
        return self.candidates[:2], [0.5, 0.25]

    def generate(
        self, cache, start: int, ids: Sequence[int], candidates, *, max_tokens, min_confidence, bidirectional=False
    ):
        top = self.run(cache, start, ids, candidates, bidirectional=bidirectional)
        generated = self.candidates[:1] * (min(max_tokens, self.num_confident) if min_confidence <= 0.5 else 0)
        for i, token in enumerate(generated):
            self.run(cache, start + len(ids) + i, [token], candidates)
        return generated, [0.5] * len(generated), top


def make_model(markers=(MARK,), **settings) -> tuple[DraftModel, RecordingKernel]:
    kernel = RecordingKernel()
    return DraftModel(kernel, markers=markers, answer_tokens=(1, 2), word_tokens=without_space, **settings), kernel


def without_space(tokens: Sequence[int]) -> list[int]:
    return [token - 100 if 100 <= token < 200 else token for token in tokens]


def test_it_reads_word_tokens_after_the_last_marker_and_the_unchanged_answer():
    model, kernel = make_model()
    text = model.begin([50, *MARK, 51, *MARK, 152, 53])
    assert text is not None
    assert text.guesses([104, 5]) == [(1, 127), (2, 63)]
    assert kernel.tokens() == [52, 53, 104, 5]


def test_candidates_are_answer_tokens_and_prompt_tokens_with_and_without_space():
    model, kernel = make_model()
    text = model.begin([50, *MARK, 152])
    assert text is not None
    text.guesses([])
    assert kernel.candidates == [1, 2, 7, 8, 50, 52, 152]


def test_allowed_guesses_do_not_recompute_tokens():
    model, kernel = make_model()
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    text.guesses([5])
    num_read = kernel.num_read
    assert text.allowed_guesses(np.array([1 << 4, 0], np.int32)) == [(4, 255)]
    assert kernel.num_read == num_read


def test_a_prompt_is_read_from_the_first_marker_and_split_at_the_next_one():
    assert split_prompt([1, *MARK, 2, 3, *LATER, 4], (MARK, LATER), list) == [[2, 3, 9], [4]]
    assert split_prompt([1, *MARK, 2, 3, *LATER], (MARK, LATER), list) == [[2, 3, 9], []]
    assert split_prompt([*LATER, 5, *MARK, 2], (MARK, LATER), list) == [[2]]
    assert split_prompt([1, 2, *LATER, 4], (MARK, LATER), list) == [[4]]


def test_only_the_end_of_a_long_prompt_is_read():
    columns = [3] * (MAX_TOKENS - 100)
    assert split_prompt([*MARK, *columns, *LATER, 4], (MARK, LATER), list) == [[4]]
    assert split_prompt([*MARK, *columns[:200], *LATER, 4], (MARK, LATER), list) == [[*columns[:200], 9], [4]]
    assert split_prompt([*MARK, *LATER, *[3] * MAX_TOKENS], (MARK, LATER), list) is None
    assert split_prompt([*MARK, *columns], (MARK,), list) == [columns]


def test_the_limit_counts_word_tokens():
    columns = [3] * (MAX_TOKENS - 100)
    assert split_prompt([*MARK, *columns, *LATER, 4], (MARK, LATER), lambda part: part[::2]) == [
        [*columns, 9][::2],
        [4],
    ]
    assert split_prompt([*MARK, *columns], (MARK,), lambda part: part * 2) is None


def test_attention_is_bidirectional_within_parts_of_the_prompt_and_causal_in_the_answer():
    model, kernel = make_model((MARK, LATER))
    text = model.begin([*MARK, 3, 4, *LATER, 5, 6])
    assert text is not None
    text.guesses([10, 11])
    assert kernel.calls == [(0, 3, True), (3, 2, True), (5, 2, False)]


def test_a_first_part_is_reused_from_another_request():
    model, kernel = make_model((MARK, LATER))
    for question in ([5], [6, 5]):
        text = model.begin([*MARK, 3, 4, *LATER, *question])
        assert text is not None
        text.guesses([10])
        assert kernel.tokens() == [3, 4, 9, *question, 10]
    assert kernel.num_read == 3 + 2 + 3


@given(st.lists(st.integers(10, 16), max_size=60))
@example([10, 11] * 20)  # the same two again and again
def test_the_most_recently_used_first_parts_are_cached(firsts: list[int]):
    model, kernel = make_model(
        (MARK, LATER), max_cached_positions=100
    )  # five first parts: each takes a block or two of 16
    used: list[int] = []  # the most recently used one is last
    for first in firsts:
        is_cached, num_read = first in used, kernel.num_read
        text = model.begin([*MARK, *[first] * first, *LATER, 5])
        assert text is not None
        assert kernel.tokens() == [*[first] * first, 9]
        assert (kernel.num_read == num_read) == is_cached
        used = [other for other in used if other != first] + [first]
        used = [other for i, other in enumerate(used) if sum(-(-(length + 1) // 16) * 16 for length in used[i:]) <= 100]


@pytest.mark.parametrize("prompt", [[], [7], [8, 7], [1, 2, 3], [7, 1, 8], [*MARK, *[10] * MAX_TOKENS]])
def test_a_prompt_without_the_marker_or_too_long_after_it_is_not_read(prompt: list[int]):
    assert make_model()[0].begin(prompt) is None


def test_an_answer_that_is_too_long_gets_no_guesses_until_it_is_truncated():
    text = make_model()[0].begin([*MARK, 3, 4])
    assert text is not None
    longest = list(range(MAX_TOKENS - 2))
    assert text.guesses(longest)
    for generate in (False, True):
        assert (text.generate([*longest, 5], 8, 0) if generate else text.guesses([*longest, 5])) == []
        assert text.guesses(longest)
    assert text.guesses([5])


def test_an_empty_text_has_no_guesses():
    text = make_model()[0].begin([*MARK])
    assert text is not None
    assert text.guesses([]) == []
    assert text.guesses([5]) != []


def test_each_token_is_read_once_while_the_answer_grows():
    model, kernel = make_model()
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    for length in range(40):
        text.guesses(list(range(200, 200 + length)))
    assert kernel.num_read == 2 + 39


@given(st.lists(st.tuples(st.lists(st.sampled_from([1, 200]), max_size=8), st.integers(0, 3)), max_size=12))
def test_the_cache_is_that_of_the_current_text_after_any_sequence(answers: list[tuple[list[int], int]]):
    model, kernel = make_model()
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    for answer, kernel.num_confident in answers:
        text.invalidate()
        generated = [token for token, _ in text.generate(answer, 8, 120)] if kernel.num_confident else []
        assert len(generated) == kernel.num_confident
        assert text.guesses(answer + generated)
        whole = [3, 4, *answer, *generated]
        assert kernel.tokens()[: len(whole)] == whole


def test_a_loaded_draft_model_has_guesses(tmp_path: Path):
    _, embedding = write_draft_model(tmp_path, markers=(MARK,))
    text = DraftModel.load(tmp_path / DRAFT_MODEL, embedding.numpy(), list).begin([*MARK, 30, 31])
    assert text is not None
    confidences = [confidence for _, confidence in text.guesses([40])]
    assert confidences == sorted(confidences, reverse=True)
    assert 0 < sum(confidences) <= 255


def test_guesses_do_not_depend_on_other_requests_in_between(tmp_path: Path):
    _, embedding = write_draft_model(tmp_path, markers=(MARK, LATER))
    load = lambda: DraftModel.load(tmp_path / DRAFT_MODEL, embedding.numpy(), list)  # noqa: E731
    shared, questions = list(range(20, 60)), ([70], [71, 72], [73])
    expected = []
    for question in questions:
        text = load().begin([*MARK, *shared, *LATER, *question])
        assert text is not None
        expected.append([text.guesses([]), text.guesses([40]), text.guesses([40, 41])])
    model, texts = load(), []
    for question in questions:
        text = model.begin([*MARK, *shared, *LATER, *question])
        assert text is not None
        texts.append((text, [text.guesses([])]))
    for answer in ([40], [40, 41]):
        for text, found in texts:
            found.append(text.guesses(answer))
    assert [found for _, found in texts] == expected


def test_a_token_beyond_the_models_vocabulary_is_no_candidate():
    kernel = RecordingKernel()
    word_tokens = lambda part: [token + 498 for token in part]  # noqa: E731
    model = DraftModel(kernel, markers=(MARK,), answer_tokens=(1, 2), word_tokens=word_tokens)
    text = model.begin([*MARK, 1, 2])
    assert text is not None
    text.guesses([])
    assert kernel.candidates == [1, 2, 7, 8, 499]
    assert kernel.tokens() == [499]


def test_confident_tokens_are_generated_and_read_once():
    model, kernel = make_model()
    kernel.num_confident = 3
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    assert text.generate([10], 8, 120) == [(1, 127)] * 3
    assert kernel.tokens() == [3, 4, 10, 1, 1, 1]
    assert text.guesses([10, 1, 1, 1]) == [(1, 127), (2, 63)]
    assert kernel.num_read == 6
    text.invalidate()
    assert text.generate([10], 8, 200) == []
    text.invalidate()
    assert text.generate([10], 2, 120) == [(1, 127)] * 2


def test_tokens_that_the_caller_did_not_use_are_not_generated_again():
    model, kernel = make_model()
    kernel.num_confident = 3
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    text.generate([10], 8, 120)
    num_read = kernel.num_read
    assert text.generate([10, 1], 8, 120) == []  # the caller did not use the rest
    assert kernel.num_read == num_read
    assert text.generate([10, 1, 30], 8, 120) == [(1, 127)] * 3
    kernel.num_confident = 0
    assert text.guesses([10, 1, 30, 31]) == [(1, 127), (2, 63)]
    num_read = kernel.num_read
    assert text.generate([10, 1, 30, 31], 8, 200) == []  # not confident, and computed already
    assert kernel.num_read == num_read


def test_after_invalidate_the_last_token_is_recomputed():
    model, kernel = make_model()
    text, other = model.begin([*MARK, 3, 4]), model.begin([*MARK, 3, 5])
    assert text is not None and other is not None
    text.guesses([10])
    text.invalidate()
    other.guesses([10])
    num_read = kernel.num_read
    text.guesses([10])
    assert kernel.num_read == num_read + 1
