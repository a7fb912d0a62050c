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
        self.sure_of = 0  # tokens, the first candidate again and again
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

    def write(self, cache, start: int, ids: Sequence[int], candidates, *, most, sure, together=False):
        best = self.run(cache, start, ids, candidates, together=together)
        written = self.candidates[:1] * (min(most, self.sure_of) if sure <= 0.5 else 0)
        for i, token in enumerate(written):
            self.run(cache, start + len(ids) + i, [token], candidates)
        return written, [0.5] * len(written), best


def make_model(marks=(MARK,), **settings) -> tuple[DraftModel, RecordingKernel]:
    kernel = RecordingKernel()
    return DraftModel(kernel, marks=marks, answer_tokens=(1, 2), words=without_space, **settings), kernel


def without_space(tokens: Sequence[int]) -> list[int]:
    return [token - 100 if 100 <= token < 200 else token for token in tokens]


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
    assert read_parts([1, *MARK, 2, 3, *LATER, 4], (MARK, LATER), list) == [[2, 3, 9], [4]]
    assert read_parts([1, *MARK, 2, 3, *LATER], (MARK, LATER), list) == [[2, 3, 9], []]
    assert read_parts([*LATER, 5, *MARK, 2], (MARK, LATER), list) == [[2]]
    assert read_parts([1, 2, *LATER, 4], (MARK, LATER), list) == [[4]]


def test_of_a_long_prompt_the_end_is_read():
    columns = [3] * (MAX_TOKENS - 100)
    assert read_parts([*MARK, *columns, *LATER, 4], (MARK, LATER), list) == [[4]]
    assert read_parts([*MARK, *columns[:200], *LATER, 4], (MARK, LATER), list) == [[*columns[:200], 9], [4]]
    assert read_parts([*MARK, *LATER, *[3] * MAX_TOKENS], (MARK, LATER), list) is None
    assert read_parts([*MARK, *columns], (MARK,), list) == [columns]


def test_what_counts_is_how_many_tokens_the_words_have():
    columns = [3] * (MAX_TOKENS - 100)
    assert read_parts([*MARK, *columns, *LATER, 4], (MARK, LATER), lambda part: part[::2]) == [
        [*columns, 9][::2],
        [4],
    ]
    assert read_parts([*MARK, *columns], (MARK,), lambda part: part * 2) is None


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
    model, kernel = make_model(
        (MARK, LATER), max_kept=100
    )  # five first parts: each takes a block or two of 16
    used: list[int] = []  # last ones behind
    for first in firsts:
        is_kept, known = first in used, kernel.num_read
        text = model.begin([*MARK, *[first] * first, *LATER, 5])
        assert text is not None
        assert read_by(text) == [*[first] * first, 9]
        assert (kernel.num_read == known) == is_kept
        used = [other for other in used if other != first] + [first]
        used = [
            other
            for i, other in enumerate(used)
            if sum(-(-(length + 1) // 16) * 16 for length in used[i:]) <= 100
        ]


@pytest.mark.parametrize("prompt", [[], [7], [8, 7], [1, 2, 3], [7, 1, 8], [*MARK, *[10] * MAX_TOKENS]])
def test_a_prompt_without_the_mark_or_with_too_much_behind_it_is_not_read(prompt: list[int]):
    assert make_model()[0].begin(prompt) is None


def test_an_answer_that_grows_too_long_gets_no_more_guesses_and_one_cut_back_does():
    text = make_model()[0].begin([*MARK, 3, 4])
    assert text is not None
    longest = list(range(MAX_TOKENS - 2))
    assert text.guesses(longest)
    for write in (False, True):
        assert (text.write([*longest, 5], 8, 0) if write else text.guesses([*longest, 5])) == []
        assert text.guesses(longest)
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


@given(st.lists(st.tuples(st.lists(st.sampled_from([1, 200]), max_size=8), st.integers(0, 3)), max_size=12))
def test_whatever_was_asked_before_the_cache_holds_the_present_text(answers: list[tuple[list[int], int]]):
    model, kernel = make_model()
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    for answer, kernel.sure_of in answers:
        text.pause()
        written = [token for token, _ in text.write(answer, 8, 120)] if kernel.sure_of else []
        assert len(written) == kernel.sure_of
        assert text.guesses(answer + written)
        whole = [3, 4, *answer, *written]
        assert read_by(text)[: len(whole)] == whole


def test_a_loaded_one_guesses(tmp_path: Path):
    _, embedding = write_draft_model(tmp_path, marks=(MARK,))
    text = DraftModel.load(tmp_path / DRAFT_MODEL, embedding.numpy(), list).begin([*MARK, 30, 31])
    assert text is not None
    shares = [share for _, share in text.guesses([40])]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 255


def test_texts_guess_what_they_guess_alone_whoever_is_asked_between(tmp_path: Path):
    _, embedding = write_draft_model(tmp_path, marks=(MARK, LATER))
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


def test_a_token_that_only_the_tokenizer_has_is_no_candidate():
    kernel = RecordingKernel()
    words = lambda part: [token + 498 for token in part]  # noqa: E731
    model = DraftModel(kernel, marks=(MARK,), answer_tokens=(1, 2), words=words)
    text = model.begin([*MARK, 1, 2])
    assert text is not None
    text.guesses([])
    assert kernel.candidates == [1, 2, 7, 8, 499]
    assert read_by(text) == [499]


def test_what_it_is_sure_of_is_written_and_read_once():
    model, kernel = make_model()
    kernel.sure_of = 3
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    assert text.write([10], 8, 120) == [(1, 127)] * 3
    assert read_by(text) == [3, 4, 10, 1, 1, 1]
    assert text.guesses([10, 1, 1, 1]) == [(1, 127), (2, 63)]
    assert kernel.num_read == 6
    text.pause()
    assert text.write([10], 8, 200) == []
    text.pause()
    assert text.write([10], 2, 120) == [(1, 127)] * 2


def test_behind_the_start_of_what_was_written_nothing_is_written_again():
    model, kernel = make_model()
    kernel.sure_of = 3
    text = model.begin([*MARK, 3, 4])
    assert text is not None
    text.write([10], 8, 120)
    num_read = kernel.num_read
    assert text.write([10, 1], 8, 120) == []  # the rest was refused, or not wanted
    assert kernel.num_read == num_read
    assert text.write([10, 1, 30], 8, 120) == [(1, 127)] * 3
    kernel.sure_of = 0
    assert text.guesses([10, 1, 30, 31]) == [(1, 127), (2, 63)]
    num_read = kernel.num_read
    assert text.write([10, 1, 30, 31], 8, 200) == []  # not sure, and known
    assert kernel.num_read == num_read


def test_what_follows_is_asked_again_when_another_text_was_asked_meanwhile():
    model, kernel = make_model()
    text, other = model.begin([*MARK, 3, 4]), model.begin([*MARK, 3, 5])
    assert text is not None and other is not None
    text.guesses([10])
    text.pause()
    other.guesses([10])
    num_read = kernel.num_read
    text.guesses([10])
    assert kernel.num_read == num_read + 1
