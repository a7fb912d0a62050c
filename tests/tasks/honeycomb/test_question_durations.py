"""Lengths of time that a question's words mean, and their place in the grammar."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.honeycomb.datagen.written_questions import WRITTEN
from tasks.honeycomb.grammar import build_grammar
from tasks.honeycomb.question_durations import question_durations
from tasks.honeycomb.question_words import spoken_number
from tests.tasks.honeycomb.grammar_tools import accepts

MINUTE, HOUR, DAY = 60, 3600, 86_400


@pytest.mark.parametrize(
    ("question", "ranges", "steps"),
    [
        ("errors by service", [], []),
        ("errors over 500ms", [], []),
        ("errors in the last day and a half", [36 * HOUR], []),
        ("p95 per pod, 1.5 h, 30 sec granularity", [90 * MINUTE], [30, 90 * MINUTE]),
        ("last three quarters of an hour", [45 * MINUTE], []),
        ("quarter-hourly", [], [15 * MINUTE]),
        ("past ninety seconds, every 10s", [90], [10]),
        ("last 2h30m", [150 * MINUTE], []),
        ("an hour and 20 minutes", [80 * MINUTE], [80 * MINUTE]),
        ("1 h 30 s", [30, HOUR, HOUR + 30], [30, HOUR, HOUR + 30]),
        ("last 20 minutes minute by minute", [20 * MINUTE, MINUTE], [MINUTE]),
        ("2 1/2 hours", [150 * MINUTE], [150 * MINUTE]),
        ("1½ h", [90 * MINUTE], [90 * MINUTE]),
        ("p95, 3/4 of an hour", [45 * MINUTE], [45 * MINUTE]),
        ("3/4 h", [45 * MINUTE], [45 * MINUTE]),
        ("exit code 137 daily for 3 weeks", [21 * DAY], [DAY, 21 * DAY]),
        ("a week, 6-hourly", [7 * DAY], [6 * HOUR, 7 * DAY]),
        ("15s resolution 30 min", [30 * MINUTE], [15, 30 * MINUTE]),
        ("in a two-hour window", [2 * HOUR], [2 * HOUR]),
        ("last 3 and a half hours", [HOUR // 2, 3 * HOUR, 210 * MINUTE], []),
        ("last 5min30s", [330], []),
        ("last 2h30", [150 * MINUTE], []),
        ("past 86,400 seconds", [DAY], []),
        ("interval '45' minute", [45 * MINUTE], [45 * MINUTE]),
        ("requests over 2 seconds since Monday", [], []),
        ("it's S3's errors on m5.large", [], []),
        ("granularity=300, last 2 hours", [], []),
        ("every other hour, last 2 days", [], []),
        ("twice a day for 3 weeks", [], []),
        ("half a day", [12 * HOUR], [12 * HOUR]),
        ("between 2 and 4 hours ago", [2 * HOUR, 4 * HOUR], [2 * HOUR, 4 * HOUR]),
        ("range=PT15M", [15 * MINUTE], [15 * MINUTE]),
        ("one point an hour today", [], [HOUR]),
        ("hourly today", [], [HOUR]),
        ("hourly, last 6 hours of yesterday", [6 * HOUR, DAY // 2, DAY], [HOUR]),
        ("request rate, last 5 min", [5 * MINUTE], [1]),
        ("last 3 huors in steps of 5 min", [], [5 * MINUTE, 3 * HOUR]),
        ("day by day over the last 3 weeks", [DAY, 21 * DAY], [DAY]),
        ("past thre weeks, 1 hour steps", [], []),
        ("DATEADD(hour, -8, now)", [], []),
        ("daily from 2025-03-04 10:00 to 2025-03-14", [], [DAY]),
    ],
)
def test_words_mean_these_lengths(question: str, ranges: list[int], steps: list[int]) -> None:
    found = question_durations(question)
    assert (set(found.ranges), set(found.steps)) == (set(ranges), set(steps))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("1,5", 1.5),
        ("2 1/2", 2.5),
        ("½", 0.5),
        ("an", 1),
        ("twenty-five", 25),
        ("a hundred", 100),
        ("three hundred", 300),
        ("three quarters of an", 0.75),
        ("half a dozen", 6),
        ("half a", 0.5),
        ("one and a half", 1.5),
        ("a couple", 2),
    ],
)
def test_numbers_in_words(text: str, number: float) -> None:
    assert spoken_number(text) == pytest.approx(number)


def takes(question: str, **times: int) -> bool:
    query = {"calculations": [{"op": "COUNT"}], **times}
    return accepts(build_grammar(("status",), "json", question), json.dumps(query))


def test_a_range_is_one_of_the_question_and_a_step_too() -> None:
    question = "errors, last 1.5 h, half-minute steps"
    assert takes(question, time_range=5400, granularity=30)
    assert not takes(question, time_range=3600)
    assert not takes(question, time_range=30)
    assert not takes(question, granularity=300)


def test_days_of_a_quarter_are_no_range() -> None:
    assert takes("errors day by day over the last quarter", time_range=7_776_000, granularity=86_400)
    assert takes("weekly errors of the past year", time_range=31_536_000, granularity=604_800)


def test_without_lengths_any_is_allowed() -> None:
    assert takes("errors recently", time_range=1234, granularity=12)


def test_a_range_alone_has_no_step() -> None:
    assert takes("errors in the last 5 hours", time_range=18_000)
    assert not takes("errors in the last 5 hours", time_range=18_000, granularity=600)
    assert takes("errors in the last 5 hours, 10 min", time_range=18_000, granularity=600)


def test_a_range_can_be_between_two_dates() -> None:
    assert takes("last hour of 2025-03-04", start_time=1741046400, time_range=86_400)


def test_all_lengths_of_written_answers_are_found() -> None:
    compared = 0
    for file in sorted(WRITTEN.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines()[1:]:
            row = json.loads(line)
            if row["a"].keys() & {"start_time", "end_time"}:
                continue
            ranges, steps = question_durations(row["q"])
            for key, lengths in (("time_range", ranges), ("granularity", steps)):
                assert not lengths or row["a"].get(key, lengths[0]) in lengths, row
                compared += bool(lengths) and key in row["a"]
    assert compared > 2000


@given(st.text(st.sampled_from("0123456789 ½/.,-and hourmsdPT:±٣"), max_size=80))
def test_no_question_fails_and_lengths_are_positive(question: str) -> None:
    for lengths in question_durations(question):
        assert list(lengths) == sorted(set(lengths))
        assert all(length > 0 for length in lengths)


def test_very_many_steps_do_not_exclude_a_step() -> None:
    many = ", ".join(f"every {number} min" for number in range(1, 80))
    assert question_durations(f"errors in the last 5 hours, {many}") == ((), ())


def test_a_long_question_takes_little_time() -> None:
    parts = ["1,", "1/", "a ", "half of ", "one and ", "2025-03-04 ", "9"]
    for question in [part * (2000 // len(part)) for part in parts] + ["".join(random.Random(1).choices(parts, k=500))]:
        assert len(question_durations(question).ranges) <= 64
