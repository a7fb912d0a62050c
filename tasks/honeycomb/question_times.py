"""The Unix times that a question can mean, where it names a date: a model copies a date well, but converts it badly.

question_times("errors on 2025-03-04")  # (1741046400, 1741132800): the day's beginning and end
question_times("errors today")  # ()
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from tasks.honeycomb.clock_times import CLOCK, CLOCKS, bare_hours, clock_times, time_of_day

_YEARS: Final = range(1971, 2101)
_ONE_DAY: Final = timedelta(days=1)
_MAX_TIMES: Final = 64  # a question with more is no question about a time, and would make a large grammar
# In "on 2025-02-09 01:00-05:00" the second time is an end; it is an offset only after a time with a T.
_OFFSET: Final = r"(?:Z|(?P<sign>\+|(?(t)-|-(?=\d{4})))(?P<hours>\d{2}):?(?P<minutes>\d{2}))?"
_AT: Final = rf"(?:(?:(?P<t>T)|,? (?:at )?){CLOCK}{_OFFSET})?"
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = rf"(?:{'|'.join(_MONTHS)})[a-z]*\.?"
_DAY: Final = r"\d{1,2}(?:st|nd|rd|th)?"
_TO: Final = r" ?(?:-|–|to|and|until|till|through) ?(?:the )?"
_YEAR: Final = rf"(?: of)?,? (?P<year>\d{{4}})\b{_AT}(?![\d-])"
_DATES: Final = tuple(  # the last two may be two dates of one year
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<![\d-])(?P<year>\d{{4}})-(?P<month>\d{{2}})-(?P<day>\d{{2}})(?![\d-]){_AT}(?![\d-])",
        rf"\b(?:(?P<first>{_DAY})(?: (?:of )?(?P<first_month>{_MONTH}))?{_TO})?"
        rf"(?P<day>{_DAY}) (?:of )?(?P<month>{_MONTH}){_YEAR}",
        rf"\b(?:(?P<first_month>{_MONTH}) (?P<first>{_DAY}){_TO})?(?:(?P<month>{_MONTH}) )?(?P<day>{_DAY}){_YEAR}",
    )
)
_UNITS: Final = "(?:days?|hours?|hrs?|minutes?|mins?|seconds?|secs?|[dhms])"
_RELATIVE: Final = re.compile(
    rf"\b(?:for|before|after|starting|beginning|leading|following|prior|around|{_UNITS} (?:from|up to|until|till))\b",
    re.IGNORECASE,
)
_UNIX: Final = re.compile(r"(?<![\w.-])[1-9]\d{9}(?![\w.-])")


def question_times(question: str, lengths: Iterable[int] = ()) -> tuple[int, ...]:
    """All Unix times in seconds that the dates of a question can mean; none if it names no date, or very many.

    A day without a time of day means its beginning or end, or any time of day that the question names; only these if it
    names two. Times are UTC unless they have an offset, such as +02:00. Unix times in the question count too.

    Args:
        question: may say "for two hours from 2025-03-04 14:00", "the hour before".
        lengths: of time in seconds, which it names.
    """
    plain, moments, rest = set[datetime](), set[datetime](), question
    clocks_of: dict[datetime, timedelta] = {}
    for match in (match for pattern in _DATES for match in pattern.finditer(question)):
        if (day := _day(match["year"], match["month"] or match.groupdict().get("first_month"), match["day"])) is None:
            continue
        plain |= _first_days(match)
        if match["hour"] or match["hour12"] or match["name"]:
            clocks_of[day] = time_of_day(match)
            moments.add(day + clocks_of[day] - _offset(match["sign"], match["hours"], match["minutes"]))
        else:
            plain.add(day)
        rest = rest.replace(match[0], " ")
    days = plain | set(clocks_of)
    clocks, hours = clock_times(rest), bare_hours(rest)
    if not days or len(days) * len(clocks + hours) + len(moments) > _MAX_TIMES:
        return ()
    if len(plain) > 1 or len(clocks) < 2:
        moments |= plain | {day + _ONE_DAY for day in plain}
    for day in days:
        after = clocks_of.get(day, timedelta(-1))
        moments |= {day + clock + (_ONE_DAY if clock <= after else timedelta()) for clock in (*clocks, *hours)}
    times = {int(moment.timestamp()) for moment in moments} | {int(number) for number in _UNIX.findall(rest)}
    if _RELATIVE.search(rest):
        times |= {time + sign * length for time in times for length in lengths for sign in (-1, 1)}
    return tuple(sorted(times)) if len(times) <= _MAX_TIMES else ()


def without_times(question: str) -> str:
    """The question without its dates, times of day and Unix times."""
    for pattern in (*_DATES, CLOCKS, _UNIX):
        question = pattern.sub(" ", question)
    return question


def _first_days(match: re.Match[str]) -> set[datetime]:
    """The 3rd of May, of "3 to 5 May 2025"."""
    found = match.groupdict()
    first = _day(match["year"], found.get("first_month") or match["month"], found.get("first") or "")
    return set() if first is None else {first}


def _day(year: str, month: str | None, day: str) -> datetime | None:
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
