"""The confidence of a field is the lowest probability among the tokens that wrote it, however they cut the text."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.confidence import (
    Calibration,
    answer_probabilities,
    calibration_path,
    field_probabilities,
    values_by_pointer,
)
from tasks.errors import TaskFileError

SCALARS = st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(-9, 9) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
SEPARATORS = st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")])


@st.composite
def written(draw) -> tuple[object, list[bytes], list[float]]:
    """A value, the tokens of its text, and their log probabilities."""
    value = draw(VALUES)
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=draw(SEPARATORS)).encode()
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=12)) - {len(text)})
    tokens = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    logprobs = draw(st.lists(st.floats(-9, 0), min_size=len(tokens), max_size=len(tokens)))
    return value, tokens, logprobs


@given(written())
def test_each_value_is_a_field(answer):
    value, tokens, logprobs = answer
    assert set(field_probabilities(tokens, logprobs)) == {pointer for pointer, _ in values_by_pointer(value)}


@given(written())
def test_the_surest_field_is_at_most_as_sure_as_the_surest_token_and_the_least_sure_token_counts_once(answer):
    _, tokens, logprobs = answer
    found = field_probabilities(tokens, logprobs).values()
    assert all(any(math.isclose(one, math.exp(each)) for each in logprobs) for one in found)
    written_tokens = [each for token, each in zip(tokens, logprobs, strict=True) if token.strip()]
    assert math.isclose(min(found), math.exp(min(written_tokens)))


@given(written())
def test_a_less_likely_token_makes_no_field_surer(answer):
    _, tokens, logprobs = answer
    before = field_probabilities(tokens, logprobs)
    for i in range(len(tokens)):
        after = field_probabilities(tokens, [*logprobs[:i], logprobs[i] - 1, *logprobs[i + 1 :]])
        assert all(after[pointer] <= before[pointer] for pointer in before)


@given(VALUES, SEPARATORS)
def test_with_a_token_for_each_character_a_field_is_its_own_characters(value, separators):
    text = json.dumps(value, separators=separators)
    whole = field_probabilities([text.encode()], [0.0])
    doubtful: set[str] = set()
    for i, character in enumerate(text):
        logprobs = [0.0] * len(text)
        logprobs[i] = -1.0
        found = field_probabilities([each.encode() for each in text], logprobs)
        lower = {pointer for pointer, probability in found.items() if probability < 1}
        assert len(lower) <= 1
        assert lower or character == " "
        doubtful |= lower
    assert doubtful == set(whole)


def test_a_wrong_value_and_a_list_that_ends_too_early_are_told_apart():
    tokens = [b'{"fil', b'ters": [{"col', b'umn": "', b"error", b'"}', b"]", b"}"]
    sure = [0.0] * len(tokens)
    wrong = field_probabilities(tokens, [*sure[:3], math.log(0.25), *sure[4:]])
    assert wrong == {"": 1, "/filters": 1, "/filters/0": 1, "/filters/0/column": 0.25}
    early = field_probabilities(tokens, [*sure[:5], math.log(0.5), 0.0])
    assert early == {"": 1, "/filters": 0.5, "/filters/0": 1, "/filters/0/column": 1}


def test_pointers_escape_what_they_are_made_of():
    assert set(field_probabilities([b'{"a/b~": [1]}'], [0.0])) == {"", "/a~1b~0", "/a~1b~0/0"}


@pytest.mark.parametrize(
    "text", ["It is warm.", '{"a": 1', '{"a": 1, "a": 2}', "\ud83d".encode("utf-16-le", "surrogatepass")]
)
def test_a_text_that_is_no_json_is_one_field(text):
    content = text if isinstance(text, bytes) else text.encode()
    found = field_probabilities([content[:2], content[2:]], [math.log(0.5), 0.0])
    assert found == {"": 0.5}


def test_an_answer_without_tokens_has_no_field():
    assert field_probabilities([], []) == {}


def test_a_log_probability_is_missing():
    with pytest.raises(ValueError, match="2 tokens have 1 log probabilities"):
        field_probabilities([b"{", b"}"], [0.0])


def test_what_a_task_has_changed_has_no_confidence():
    text = '{"breakdowns": ["a"], "limit": 5, "orders": [{"op": "COUNT"}], "time_range": 60}'
    tokens, logprobs = [text.encode()], [math.log(0.5)]
    shown = '{"breakdowns": ["a"], "limit": 6, "time_range": 60}'
    found = answer_probabilities(tokens, logprobs, shown)
    assert found == {"": 0.5, "/breakdowns": 0.5, "/breakdowns/0": 0.5, "/time_range": 0.5}
    assert answer_probabilities(tokens, logprobs, text) == field_probabilities(tokens, logprobs)


def test_a_task_that_shows_another_kind_of_text_has_one_field():
    assert answer_probabilities([b'{"a": ', b"1}"], [0.0, math.log(0.25)], "a is 1") == {"": 0.25}


POINTS = ((0.5, 0.25, 10), (0.75, 0.75, 10), (1.0, 1.0, 40))


def test_a_share_is_interpolated_between_what_was_measured():
    calibration = Calibration(answers=9, fields=60, points=POINTS)
    assert [calibration.share(p) for p in (0.25, 0.5, 0.625, 0.75, 1.0)] == [0.125, 0.25, 0.5, 0.75, 1.0]


def test_a_doubtful_field_is_one_of_which_fewer_than_a_share_were_right():
    calibration = Calibration(answers=9, fields=60, points=POINTS)
    assert calibration.metric({"/a": 0.625, "/b": 1.0}) == {
        "fields": {"/a": 0.5, "/b": 1.0},
        "lowest": 0.5,
        "doubtful_below": 0.8,
        "calibrated": True,
    }


def test_without_a_calibration_a_probability_stands_for_itself(tmp_path):
    calibration = Calibration.beside(tmp_path / "mine")
    found = calibration.metric({"/a": 0.6254})
    assert found == {"fields": {"/a": 0.625}, "lowest": 0.625, "doubtful_below": 0.8, "calibrated": False}


def test_a_calibration_is_read_from_beside_the_weights(tmp_path):
    written = Calibration(answers=9, fields=60, points=POINTS)
    calibration_path(tmp_path / "mine").write_text(written.model_dump_json())
    assert Calibration.beside(tmp_path / "mine") == written


def test_another_file_at_the_place_of_a_calibration_is_refused(tmp_path):
    (tmp_path / "mine.confidence.json").write_text('{"points": "none"}')
    with pytest.raises(TaskFileError, match=r"mine\.confidence\.json is no calibration"):
        Calibration.beside(tmp_path / "mine")
