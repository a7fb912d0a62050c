"""Times that a question's dates mean, and their place in the grammar."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from examples.honeycomb.datagen.written_questions import WRITTEN
from tasks.honeycomb.grammar import build_grammar
from tasks.honeycomb.question_durations import question_durations
from tasks.honeycomb.question_times import question_times


def unix(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp())


MAY = unix(2025, 5, 3), unix(2025, 5, 5), unix(2025, 5, 6)
NOTHING = list[int]()


@pytest.mark.parametrize(
    ("question", "starts", "ends"),
    [
        ("errors on 2025-03-04", [unix(2025, 3, 4)], [unix(2025, 3, 5)]),
        ("since 3 May 2025", [unix(2025, 5, 3)], [unix(2025, 5, 4)]),
        ("since the 3rd of May 2025", [unix(2025, 5, 3)], [unix(2025, 5, 4)]),
        ("on Dec. 31st, 2024", [unix(2024, 12, 31)], [unix(2025, 1, 1)]),
        # Two days: the end is the beginning or the end of the last.
        ("from 2025-05-03 to 2025-05-05", MAY[:1], MAY[1:]),
        ("2025-05-03 through 2025-05-05", MAY[:1], MAY[2:]),
        ("from Monday, May 3 through Wednesday, May 5, 2025", MAY[:1], MAY[2:]),
        ("30 Dec 2024 to 2 Jan 2025", [unix(2024, 12, 30)], [unix(2025, 1, 2), unix(2025, 1, 3)]),
        ("30 Dec to 2 Jan 2024", [unix(2023, 12, 30)], [unix(2024, 1, 2), unix(2024, 1, 3)]),
        ("between Dec 30 and Jan 2 2025", [unix(2024, 12, 30)], [unix(2025, 1, 2), unix(2025, 1, 3)]),
        ("until 2025-05-03", [unix(2025, 5, 3)], [unix(2025, 5, 3), unix(2025, 5, 4)]),
        ("3-5 May 2025", MAY[:1], MAY[1:]),
        ("the 3rd to the 5th of May 2025 inclusive", MAY[:1], MAY[2:]),
        ("May 3 to May 5, 2025", MAY[:1], MAY[1:]),
        ("30 April until 2 May 2025", [unix(2025, 4, 30)], [unix(2025, 5, 2), unix(2025, 5, 3)]),
        # Times of day.
        ("2025-03-17T08:00:00Z to 2025-03-17T18:30:00Z", [unix(2025, 3, 17, 8)], [unix(2025, 3, 17, 18, 30)]),
        ("Jan 15 2025 08:00 to Jan 15 2025 20:00", [unix(2025, 1, 15, 8)], [unix(2025, 1, 15, 20)]),
        ("2025-02-11 14:00 to 16:00", [unix(2025, 2, 11, 14)], [unix(2025, 2, 11, 16)]),
        ("9:05 to 15:30 on 2025-02-11", [unix(2025, 2, 11, 9, 5)], [unix(2025, 2, 11, 15, 30)]),
        ("9 Feb 2025 01:00-05:00", [unix(2025, 2, 9, 1)], [unix(2025, 2, 9, 5)]),
        ("2025-02-11 from 18:00 till midnight", [unix(2025, 2, 11, 18)], [unix(2025, 2, 12)]),
        ("2025-02-11 from midnight to noon", [unix(2025, 2, 11)], [unix(2025, 2, 11, 12)]),
        ("overnight, 2025-02-10 22:00 to 06:00", [unix(2025, 2, 10, 22)], [unix(2025, 2, 11, 6)]),
        ("3 May 2025, 2pm-4:30 p.m.", [unix(2025, 5, 3, 14)], [unix(2025, 5, 3, 16, 30)]),
        (
            "from 18:00 on 2025-02-11",
            [unix(2025, 2, 11), unix(2025, 2, 11, 18)],
            [unix(2025, 2, 11, 18), unix(2025, 2, 12)],
        ),
        (
            "2025-02-11 between 14 and 16",
            [unix(2025, 2, 11), unix(2025, 2, 11, 14), unix(2025, 2, 11, 16)],
            [unix(2025, 2, 11, 14), unix(2025, 2, 11, 16), unix(2025, 2, 12)],
        ),
        # Offsets, and Unix times beside a date.
        ("since 2025-03-04T12:00:00+02:00", [unix(2025, 3, 4, 10)], [unix(2025, 3, 4, 10)]),
        ("since 2025-03-04 12:00-0530", [unix(2025, 3, 4, 17, 30)], [unix(2025, 3, 4, 17, 30)]),
        ("since 2025-03-04T12:00-05:00", [unix(2025, 3, 4, 17)], [unix(2025, 3, 4, 17)]),
        ("from 1741000000 until 2025-03-04", [1741000000, unix(2025, 3, 4)], [unix(2025, 3, 4), unix(2025, 3, 5)]),
        ("10:00 to 12:00 on 2025-03-04, over 5 s", [unix(2025, 3, 4, 10)], [unix(2025, 3, 4, 12)]),
        ("from 2025-03-04 10:00 to 12:00 slower than 5 s", [unix(2025, 3, 4, 10)], [unix(2025, 3, 4, 12)]),
        (
            "2-4pm on 2025-03-04",
            [unix(2025, 3, 4), unix(2025, 3, 4, 14), unix(2025, 3, 4, 16)],
            [unix(2025, 3, 4, 14), unix(2025, 3, 4, 16), unix(2025, 3, 5)],
        ),
        # What is not known restricts nothing.
        ("2025-03-04 10:00 CET", NOTHING, NOTHING),
        ("2025-03-04 10:00 to 2025-03-04 12:00 CET", NOTHING, NOTHING),
        ("from 2025-03-04 to March 6", NOTHING, NOTHING),
        ("afternoon of 2025-03-04", NOTHING, NOTHING),
        ("2025-03-04 14h-16h", NOTHING, NOTHING),
        # No dates.
        ("errors today", NOTHING, NOTHING),
        ("until 9999-12-31 at 23:59, since 0001-01-01", NOTHING, NOTHING),
        (" ".join(f"2025-03-{day:02} {day}:30 9:{day:02}" for day in range(1, 29)), NOTHING, NOTHING),
        ("from 1733000000 to 1733003600", NOTHING, NOTHING),
        ("version 2025-13-40 at 10:00", NOTHING, NOTHING),
        ("order 12025-03-041", NOTHING, NOTHING),
    ],
)
def test_dates_mean_these_times(question: str, starts: list[int], ends: list[int]) -> None:
    assert question_times(question) == (tuple(starts), tuple(ends))


@pytest.mark.parametrize(
    ("question", "start", "end"),
    [
        ("three hours starting at 2025-02-10 14:00", 14, 17),
        ("for 3 hours from 2025-02-10 14:00", 14, 17),
        ("3 h after 1739196000", 14, 17),
        ("2025-02-10T14:00Z for three hours", 14, 17),
        ("the three hours before 2025-02-10T14:00Z", 11, 14),
        ("the 3 hours up to 1739196000", 11, 14),
        ("3 hours leading up to Feb 10, 2025 at 2pm", 11, 14),
    ],
)
def test_a_length_gives_the_other_end(question: str, start: int, end: int) -> None:
    lengths = question_durations(question).ranges
    assert question_times(question, lengths) == ((unix(2025, 2, 10, start),), (unix(2025, 2, 10, end),))


def test_a_step_or_an_id_gives_no_end() -> None:
    at = unix(2025, 2, 10, 14)
    question = "since 2025-02-10 14:00, hourly"
    assert question_times(question, question_durations(question).ranges) == ((at,), (at,))
    assert question_times("order 1739196000, last 3 hours", [10_800]) == ((), ())


def test_a_pasted_log_is_no_error() -> None:
    assert question_times("2025-03-04 last 5m " + "1:00 " * 70, [300]) == ((), ())
    assert question_times("5 ſep 2025") == ((), ())


def test_ends_of_written_answers_are_found() -> None:
    limited = 0
    for file in sorted(WRITTEN.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines()[1:]:
            row = json.loads(line)
            starts, ends = question_times(row["q"], question_durations(row["q"]).ranges)
            for key, times in (("start_time", starts), ("end_time", ends)):
                assert not times or row["a"].get(key, times[0]) in times, row
                limited += bool(times) and key in row["a"]
    assert limited > 1000


def terminals(question: str | None) -> dict[str, str]:
    lines = build_grammar(("duration_ms",), "json", question).splitlines()
    return {name: value for name, _, value in (line.partition(": ") for line in lines) if name in ("START", "END")}


def test_a_range_begins_before_it_ends() -> None:
    day, next_day = unix(2025, 3, 4), unix(2025, 3, 5)
    assert terminals("errors on 2025-03-04") == {"START": f"/{day}/", "END": f"/{next_day}/"}


def test_without_dates_any_time_may_be_written() -> None:
    anything = {"START": "/[1-9][0-9]{0,10}/", "END": "/[1-9][0-9]{0,10}/"}
    assert terminals("errors since 1733000000") == anything
    assert terminals(None) == anything
