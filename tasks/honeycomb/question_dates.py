"""The dates of a question: days, and moments where a time of day stands beside the day.

find_dates("from 3 to 5 May 2025")  # days 3 and 5 May, text "from [time]"
find_dates("since 2025-03-04T12:00+02:00")  # moments 10:00 UTC, text "since [time]"
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from tasks.honeycomb.question_words import CLOCK, WEEKDAY, time_of_day

PLACE: Final = "[time]"
"""What stands in the text instead of a date."""

_YEARS: Final = range(1971, 2101)
# In "on 2025-02-09 01:00-05:00" the second time is an end; it is an offset only after a time with a T.
_OFFSET: Final = r"(?:Z| ?(?P<sign>\+|(?(t)-|-(?=\d{4})))(?P<hours>\d{2}):?(?P<minutes>\d{2}))?"
_AT: Final = rf"(?:(?:(?P<t>T)|,? (?:at )?){CLOCK}{_OFFSET})?"
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = rf"(?:{'|'.join(_MONTHS)})[a-z]*\.?"
_DAY: Final = r"\d{1,2}(?:st|nd|rd|th)?"
_TO: Final = (
    r" ?(?:[-–—→&,]|->|\.\.|to|and|until|till?|thru|through(?: to)?|up to) ?(?:the )?"
    rf"(?:{WEEKDAY},? )?"
)
_YEAR: Final = rf"(?: of)?,? (?P<year>\d{{4}})\b{_AT}(?![\d-])"
_DATES: Final = tuple(  # the last two may be two dates of one year
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        rf"(?<![\d-])(?P<year>\d{{4}})-(?P<month>\d{{2}})-(?P<day>\d{{2}})(?![\d-]){_AT}(?![\d-])",
        rf"\b(?:(?P<first>{_DAY})(?: (?:of )?(?P<first_month>{_MONTH}))?{_TO})?"
        rf"(?P<day>{_DAY}) (?:of )?(?P<month>{_MONTH}){_YEAR}",
        rf"\b(?:(?P<first_month>{_MONTH}) (?P<first>{_DAY}){_TO})?(?:(?P<month>{_MONTH}) )?(?P<day>{_DAY}){_YEAR}",
    )
)

OTHER_FORMS: Final = re.compile(  # days and times of day in a form that is not known
    rf"\b(?:{_DAY} {_MONTH}|{_MONTH} {_DAY}|{WEEKDAY},? (?:the )?\d{{1,2}})\b"
    r"|(?<![\w:./-])\d{1,2}[-/]\d{1,2}(?![\w:./-]| ?[ap]\.?m)|\b\d{1,2}(?:st|nd|rd|th)\b"
    r"|o'clock|\b(?:half|quarter) (?:past|to)\b|[a-z] [ap]\.?m\b|business hours|\bweek (?:ending|to)\b"
    r"|\b(?:mornings?|afternoons?|evenings?)\b(?= (?:of|on|in|\[))|\bat \d{1,2}\b(?![:.\d]| ?[ap]\.?m)"
    r"|\d{1,2}h(?:\d{2}| ?(?:-|–|to))|\b\d{4}z? ?(?:-|–|to) ?\d{4}z?\b|\b\d{1,2}a\b|\d\.\d{2} ?[ap]\.?m",
    re.IGNORECASE | re.ASCII,
)
ZONE: Final = re.compile(  # a time zone other than UTC
    r"\b(?:[PMCE][SD]?T|CES?T|BST|IST|JST|AES?T|(?:UTC|GMT) ?[+-]\d)\b|(?i:pacific|eastern|central|local) time"
)


class Dates(NamedTuple):
    """What find_dates has found.

    Args:
        days: beginnings of days that stand without a time of day, in UTC.
        moments: days with a time of day, in UTC.
        clocks: time since midnight, as written before its offset, of each day of `moments`.
        text: the question with PLACE instead of each date.
    """

    days: frozenset[datetime]
    moments: frozenset[datetime]
    clocks: dict[datetime, timedelta]
    text: str


def find_dates(question: str) -> Dates:
    """All dates with a year between 1971 and 2100, in UTC; a time with an offset such as +02:00 is converted.

    Impossible dates are left out.
    """
    days, moments, clocks = set[datetime](), set[datetime](), dict[datetime, timedelta]()
    text = question
    for match in (match for pattern in _DATES for match in pattern.finditer(question)):
        found = match.groupdict()
        day = _day(found["year"], found["month"] or found.get("first_month"), found["day"])
        if day is None:
            continue
        days |= _first_days(found, day)
        if found["hour"] or found["hour12"] or found["name"]:
            clocks[day] = time_of_day(match)
            moments.add(day + clocks[day] - _offset(found["sign"], found["hours"], found["minutes"]))
        else:
            days.add(day)
        text = re.sub(rf"(?<!\d){re.escape(match[0])}", PLACE, text)
    return Dates(frozenset(days), frozenset(moments), clocks, text)


def _first_days(found: dict[str, str | None], day: datetime) -> set[datetime]:
    """3 May of "3 to 5 May 2025", and 30 December 2024 of "30 Dec to 2 Jan 2025"."""
    year, month = int(found["year"] or 0), found.get("first_month") or found["month"]
    days = (_day(str(year - before), month, found.get("first")) for before in (0, 1))
    return set(sorted(first for first in days if first is not None and first <= day)[-1:])


def _day(year: str, month: str | None, day: str | None) -> datetime | None:
    if not month or not day or int(year) not in _YEARS:
        return None
    number = int(month) if month.isdecimal() else _MONTHS.index(month[:3].lower()) + 1
    try:
        return datetime(int(year), number, int(re.sub(r"\D", "", day)), tzinfo=UTC)
    except ValueError:
        return None


def _offset(sign: str | None, hours: str | None, minutes: str | None) -> timedelta:
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    return -offset if sign == "-" else offset
