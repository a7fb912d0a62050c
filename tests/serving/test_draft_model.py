"""What a draft model reads of a request: behind a mark, each token once, and again what was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.draft_model import DraftModel
from serving.draft_text import read_parts
from serving.draft_weights import DRAFT_MODEL, MAX_TOKENS
from tests.draft_models import write_draft_model

MARK, LATER = (7, 8), (9,)


class RecordingKernel:
    """Keeps what it is given in its cache, and guesses the first candidates."""

    vocab_size = 500

    def __init__(self) -> None:
        self.candidates: list[int] = []
        self.num_read = 0
        self.calls: list[tuple[int, int, bool]] = []

    def new_cache(self):
        return np.full((MAX_TOKENS, 1), -1.0, np.float32)

    def run(self, cache, start: int, ids: Sequence[int], candidates, allowed=None, *, together=False):
        if allowed is not None:
            assert not ids
            return [token for token in self.candidates if allowed[token // 32] >> token % 32 & 1], [1.0]
        assert ids
        cache[start : start + len(ids), 0] = ids
        self.calls.append((start, len(ids), together))
        self.num_read += len(ids)
        self.candidates = candidates.tolist()
        return self.candidates[:2], [0.5, 0.25]


def make_model(marks=(MARK,), **settings) -> tuple[DraftModel, RecordingKernel]:
    kernel = RecordingKernel()
    plain = lambda token: token - 100 if 100 <= token < 200 else token  # noqa: E731
    return DraftModel(kernel, marks=marks, answer_tokens=(1, 2), plain=plain, **settings), kernel


def read_by(text) -> list[int]:
    return [int(token) for token in text._cache[:, 0] if token >= 0]


def test_it_reads_behind_the_last_mark_without_leading_spaces_and_then_the_answer_as_it_is():
    model, _ = make_model()
    text = model.begin([50, *MARK, 51, *MARK, 152, 53])
    assert text is not None
    assert text.guesses([104, 5]) == [(1, 127), (2, 63)]
    assert read_by(text) == [52, 53, 104, 5]


def test_candidates_are_what_answers_have_and_what_the_prompt_has_with_and_without_space():
    model, kernel = make_model()
    text = model.begin([50, *MARK, 152])
    assert text is not None
    text.guesses([])
    assert kernel.candidates == [1, 2, 7, 8, 50, 52, 152]


def test_guesses_can_be_asked_for_again_among_some_tokens():
    model, kernel = make_model()
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    text.guesses([5])
    num_read = kernel.num_read
    assert text.guesses_among(np.array([1 << 4, 0], np.int32)) == [(4, 255)]
    assert kernel.num_read == num_read


def test_a_prompt_is_read_from_the_first_mark_and_cut_at_the_later_one():
    assert read_parts([1, *MARK, 2, 3, *LATER, 4], (MARK, LATER)) == [[2, 3, 9], [4]]
    assert read_parts([1, *MARK, 2, 3, *LATER], (MARK, LATER)) == [[2, 3, 9], []]
    assert read_parts([*LATER, 5, *MARK, 2], (MARK, LATER)) == [[2]]
    assert read_parts([1, 2, *LATER, 4], (MARK, LATER)) == [[4]]


def test_of_a_long_prompt_the_end_is_read():
    columns = [3] * (MAX_TOKENS - 100)
    assert read_parts([*MARK, *columns, *LATER, 4], (MARK, LATER)) == [[4]]
    assert read_parts([*MARK, *columns[:200], *LATER, 4], (MARK, LATER)) == [[*columns[:200], 9], [4]]
    assert read_parts([*MARK, *LATER, *[3] * MAX_TOKENS], (MARK, LATER)) is None
    assert read_parts([*MARK, *columns], (MARK,)) == [columns]


def test_parts_of_a_prompt_are_read_together_and_the_answer_is_not():
    model, kernel = make_model((MARK, LATER))
    text = model.begin([*MARK, 3, 4, *LATER, 5, 6])
    assert text is not None
    text.guesses([10, 11])
    assert kernel.calls == [(0, 3, True), (3, 2, True), (5, 2, False)]


def test_a_first_part_that_was_read_for_another_request_is_not_read_again():
    model, kernel = make_model((MARK, LATER))
    for question in ([5], [6, 5]):
        text = model.begin([*MARK, 3, 4, *LATER, *question])
        assert text is not None
        text.guesses([10])
        assert read_by(text) == [3, 4, 9, *question, 10]
    assert kernel.num_read == 3 + 2 + 3


@given(st.lists(st.integers(10, 16), max_size=60))
def test_of_first_parts_those_used_last_are_kept_and_all_are_read_right(firsts: list[int]):
    model, kernel = make_model((MARK, LATER), max_kept=100)
    used: list[int] = []  # last ones behind
    for first in firsts:
        is_kept, known = first in used, kernel.num_read
        text = model.begin([*MARK, *[first] * first, *LATER, 5])
        assert text is not None
        assert read_by(text) == [*[first] * first, 9]
        assert (kernel.num_read == known) == is_kept
        used = [other for other in used if other != first] + [first]
        used = [other for i, other in enumerate(used) if sum(length + 1 for length in used[i:]) <= 100]


@pytest.mark.parametrize(
    "prompt", [[], [7], [8, 7], [1, 2, 3], [7, 1, 8], [*MARK, *range(10, 10 + MAX_TOKENS)]]
)
def test_a_prompt_without_the_mark_or_with_too_much_behind_it_is_not_read(prompt: list[int]):
    assert make_model()[0].begin(prompt) is None


def test_an_answer_that_grows_too_long_gets_no_more_guesses_and_one_cut_back_does():
    text = make_model()[0].begin([*MARK, 3, 4])
    assert text is not None
    assert text.guesses(range(MAX_TOKENS - 2))
    assert text.guesses(range(MAX_TOKENS - 1)) == []
    assert text.guesses([5])


def test_nothing_to_read_is_nothing_to_guess_from():
    text = make_model()[0].begin([*MARK])
    assert text is not None
    assert text.guesses([]) == []
    assert text.guesses([5]) != []


def test_a_token_is_read_once_while_the_answer_grows():
    model, kernel = make_model()
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    for length in range(40):
        text.guesses(list(range(200, 200 + length)))
    assert kernel.num_read == 2 + 39


@given(st.lists(st.lists(st.integers(200, 202), max_size=8), max_size=12))
def test_whatever_was_asked_before_the_cache_holds_the_present_text(answers: list[list[int]]):
    text = make_model()[0].begin([*MARK, 3, 4])
    assert text is not None
    for answer in answers:
        assert text.guesses(answer)
        assert read_by(text)[: 2 + len(answer)] == [3, 4, *answer]


def test_a_loaded_one_guesses(tmp_path: Path):
    _, embedding = write_draft_model(tmp_path, marks=(MARK,))
    text = DraftModel.load(tmp_path / DRAFT_MODEL, embedding.numpy(), lambda token: token).begin(
        [*MARK, 30, 31]
    )
    assert text is not None
    shares = [share for _, share in text.guesses([40])]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 255


def test_texts_guess_what_they_guess_alone_whoever_is_asked_between(tmp_path: Path):
    _, embedding = write_draft_model(tmp_path, marks=(MARK, LATER))
    load = lambda: DraftModel.load(tmp_path / DRAFT_MODEL, embedding.numpy(), lambda token: token)  # noqa: E731
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


def test_a_token_that_only_the_tokenizer_has_is_no_candidate():
    kernel = RecordingKernel()
    model = DraftModel(kernel, marks=(MARK,), answer_tokens=(1, 2), plain=lambda token: token + 498)
    text = model.begin([*MARK, 1, 2])
    assert text is not None
    text.guesses([])
    assert kernel.candidates == [1, 2, 7, 8, 499]
    assert read_by(text) == [499, 2]
