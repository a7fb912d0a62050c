"""Times that a question's dates mean, and their place in the grammar."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tasks.honeycomb.grammar import build_grammar
from tasks.honeycomb.question_times import question_times


def unix(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("question", "times"),
    [
        ("errors on 2025-03-04", [unix(2025, 3, 4), unix(2025, 3, 5)]),
        ("since 3 May 2025", [unix(2025, 5, 3), unix(2025, 5, 4)]),
        ("since the 3rd of May 2025", [unix(2025, 5, 3), unix(2025, 5, 4)]),
        ("on Dec. 31st, 2024", [unix(2024, 12, 31), unix(2025, 1, 1)]),
        ("2025-03-17T08:00:00Z to 2025-03-17T18:30:00Z", [unix(2025, 3, 17, 8), unix(2025, 3, 17, 18, 30)]),
        ("2025-02-11 14:00 to 16:00", [unix(2025, 2, 11, 14), unix(2025, 2, 11, 16)]),
        ("9:05 to 15:30 on 2025-02-11", [unix(2025, 2, 11, 9, 5), unix(2025, 2, 11, 15, 30)]),
        ("1st to the 7th of June 2025", [unix(2025, 6, 1), unix(2025, 6, 2), unix(2025, 6, 7), unix(2025, 6, 8)]),
        ("3-5 May 2025", [unix(2025, 5, 3), unix(2025, 5, 4), unix(2025, 5, 5), unix(2025, 5, 6)]),
        ("30 April until 2 May 2025", [unix(2025, 4, 30), unix(2025, 5, 1), unix(2025, 5, 2), unix(2025, 5, 3)]),
        ("May 3 to May 5, 2025", [unix(2025, 5, 3), unix(2025, 5, 4), unix(2025, 5, 5), unix(2025, 5, 6)]),
        ("9 Feb 2025 01:00-05:00", [unix(2025, 2, 9, 1), unix(2025, 2, 9, 5)]),
        ("since 2025-03-04T12:00-05:00", [unix(2025, 3, 4, 17)]),
        ("from 18:00 on 2025-02-11", [unix(2025, 2, 11), unix(2025, 2, 11, 18), unix(2025, 2, 12)]),
        ("2025-02-11 from 18:00 till midnight", [unix(2025, 2, 11, 18), unix(2025, 2, 12)]),
        ("2025-02-11 from midnight to noon", [unix(2025, 2, 11), unix(2025, 2, 11, 12)]),
        ("overnight, 2025-02-10 22:00 to 06:00", [unix(2025, 2, 10, 22), unix(2025, 2, 11, 6)]),
        ("Jan 15 2025 08:00 to Jan 15 2025 20:00", [unix(2025, 1, 15, 8), unix(2025, 1, 15, 20)]),
        ("3 May 2025, 2pm-4:30 p.m.", [unix(2025, 5, 3, 14), unix(2025, 5, 3, 16, 30)]),
        (
            "2025-02-11 between 14 and 16",
            [unix(2025, 2, 11), unix(2025, 2, 11, 14), unix(2025, 2, 11, 16), unix(2025, 2, 12)],
        ),
        ("from 1741000000 until 2025-03-04", [1741000000, unix(2025, 3, 4), unix(2025, 3, 5)]),
        ("since 2025-03-04T12:00:00+02:00", [unix(2025, 3, 4, 10)]),
        ("since 2025-03-04 12:00-0530", [unix(2025, 3, 4, 17, 30)]),
        ("errors today", []),
        ("until 9999-12-31 at 23:59, since 0001-01-01", []),
        (" ".join(f"2025-03-{day:02} {day}:30 9:{day:02}" for day in range(1, 29)), []),
        ("from 1733000000 to 1733003600", []),
        ("version 2025-13-40 at 10:00", []),
        ("order 12025-03-041", []),
    ],
)
def test_dates_mean_these_times(question: str, times: list[int]) -> None:
    assert question_times(question) == tuple(times)


def test_an_end_can_be_a_length_from_a_time() -> None:
    at = unix(2025, 2, 10, 14)
    assert question_times("three hours starting 2025-02-10 14:00", [10_800]) == (at - 10_800, at, at + 10_800)
    assert question_times("90 minutes from 2025-02-10 14:00", [5400]) == (at - 5400, at, at + 5400)
    assert question_times("the 12 hours up to 2025-02-10 14:00", [43_200]) == (at - 43_200, at, at + 43_200)
    assert question_times("since 2025-02-10 14:00, hourly", [3600]) == (at,)


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


def test_a_single_time_is_the_only_one() -> None:
    moment = f"/{unix(2025, 3, 4, 12)}/"
    assert terminals("errors since 2025-03-04T12:00:00Z") == {"START": moment, "END": moment}
