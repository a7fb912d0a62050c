"""Cue tables: that a question's words decide between answers, and that files and sizes hold."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from serving.cues import CueTable, Pair, cues_of
from serving.errors import WeightsError
from serving.ngrams import START, Context

ANSWER = [90, 91, 92]  # what all answers begin with; then 1 or 2
HOUR, DAY, LAST = 7, 8, 9


def pairs(count: int = 30) -> list[Pair]:
    """Answers that go on with 1 if the question says HOUR and with 2 if it says DAY, among noise."""
    return [
        ([100 + i % 5, LAST, HOUR if i % 2 else DAY, 200 + i % 3], [*ANSWER, 1 if i % 2 else 2])
        for i in range(count)
    ]


def ask(table: CueTable, question: list[int], written: list[int]) -> list[int]:
    cues = table.known(cues_of(question))
    found = table.successors(Context([START, *written]), cues)
    return [token for token, _ in sorted(found, key=lambda pair: -pair[1])]


def test_a_word_of_the_question_decides_where_the_answer_alone_does_not():
    table = CueTable.build(pairs())
    assert ask(table, [55, LAST, HOUR], ANSWER) == [1]
    assert ask(table, [55, DAY, 66], ANSWER) == [2]
    assert ask(table, [55, 66], ANSWER) == []
    assert ask(table, [LAST], ANSWER) == []  # in every question: says nothing


def test_where_answers_agree_no_cue_is_kept():
    table = CueTable.build(pairs())
    assert ask(table, [HOUR], ANSWER[:1]) == []
    assert ask(table, [HOUR], []) == []


def test_words_in_a_row_say_more_than_words():
    both = [([LAST, HOUR, DAY], [*ANSWER, 1]), ([HOUR, LAST, DAY], [*ANSWER, 2])] * 15
    table = CueTable.build(both)
    assert ask(table, [LAST, HOUR], ANSWER) == [1]
    assert ask(table, [LAST, DAY], ANSWER) == [2]


def test_shares_grow_with_evidence_and_are_never_certain():
    few, many = CueTable.build(pairs(30)), CueTable.build(pairs(300))
    question = few.known(cues_of([HOUR]))
    context = Context([START, *ANSWER])
    ((_, low),), ((_, high),) = few.successors(context, question), many.successors(context, question)
    assert 128 < low < high < 255


def test_what_is_rare_and_what_exceeds_the_limit_is_left_out():
    assert len(CueTable.build(pairs(12))) == 0
    assert len(CueTable.build([])) == 0
    assert len(CueTable.build(pairs(), max_rows=2)) == 2
    assert ask(CueTable.build(pairs(), max_rows=2), [HOUR], ANSWER) in ([1], [])


def test_the_file_is_the_same_for_the_same_pairs_in_any_order_and_comes_back_whole(tmp_path):
    CueTable.build(pairs()).save(tmp_path / "a")
    CueTable.build(pairs()[::-1]).save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = CueTable.load(tmp_path / "a")
    assert len(loaded) == len(CueTable.build(pairs())) > 0
    assert ask(loaded, [HOUR], ANSWER) == [1]
    CueTable.build([]).save(tmp_path / "empty")
    assert len(CueTable.load(tmp_path / "empty")) == 0


def test_another_file_is_refused_by_name(tmp_path):
    path = tmp_path / "draft.cues"
    columns = {name: np.zeros(2, np.int64) for name in ("cue", "token", "share")}
    for content in ({}, {"contexts": np.zeros(1, np.int64), "context": np.array([0, 9]), **columns}):
        save_file(content, path)
        with pytest.raises(WeightsError, match=r"draft\.cues"):
            CueTable.load(path)
    path.write_text("something else")
    with pytest.raises(WeightsError, match="build the weights again"):
        CueTable.load(path)
