"""The Unix times that a question can mean, where it names a date: a model copies a date well, but converts it badly.

question_times("errors on 2025-03-04")  # (1741046400, 1741132800): the day's beginning and end
question_times("errors today")  # ()
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_YEARS: Final = range(1971, 2101)
_MAX_TIMES: Final = 64  # a question with more is no question about a time, and would make a large grammar
_CLOCK: Final = r"(\d{1,2}):(\d{2})(?::(\d{2}))?(?![\d:])"
_OFFSET: Final = r"(?:Z|([+-])(\d{2}):?(\d{2}))?"
_ISO: Final = re.compile(
    rf"(?<![\d-])(\d{{4}})-(\d{{2}})-(\d{{2}})(?:(?:[T ]|,? at ){_CLOCK}(?:\.\d+)?{_OFFSET})?(?![\d-])"
)
_CLOCKS: Final = re.compile(rf"(?<![\d:.]){_CLOCK}")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = rf"({'|'.join(_MONTHS)})[a-z]*\.?"
_DAY: Final = r"(\d{1,2})(?:st|nd|rd|th)?"
_DAY_FIRST: Final = re.compile(rf"\b{_DAY} (?:of )?{_MONTH},? (\d{{4}})\b", re.IGNORECASE)
_MONTH_FIRST: Final = re.compile(rf"\b{_MONTH} {_DAY},? (\d{{4}})\b", re.IGNORECASE)
_UNIX: Final = re.compile(r"(?<![\w.-])[1-9]\d{9}(?![\w.-])")


def question_times(question: str) -> tuple[int, ...]:
    """All Unix times in seconds that the dates of a question can mean; none if it names no date, or very many.

    A day without a time of day means its beginning or end, or any time of day that the question names. Times are UTC
    unless they have an offset, such as +02:00. Unix times in the question count too.
    """
    days, moments, rest = set[datetime](), set[datetime](), question
    for pattern, order in ((_ISO, (1, 2, 3)), (_DAY_FIRST, (3, 2, 1)), (_MONTH_FIRST, (3, 1, 2))):
        for match in pattern.finditer(question):
            if (day := _day(*(match[group] for group in order))) is None:
                continue
            days.add(day)
            if pattern is _ISO and match[4] is not None:
                moments.add(day + _time_of_day(*match.group(4, 5, 6)) - _offset(*match.group(7, 8, 9)))
            else:
                moments |= {day, day + timedelta(days=1)}
            rest = rest.replace(match[0], " ")
    clocks = [_time_of_day(*match.groups()) for match in _CLOCKS.finditer(rest)]
    if not days or len(days) * len(clocks) + len(moments) > _MAX_TIMES:
        return ()
    moments |= {day + clock for day in days for clock in clocks}
    unix = {int(number) for number in _UNIX.findall(rest)}
    return tuple(sorted({int(moment.timestamp()) for moment in moments} | unix))


def _day(year: str, month: str, day: str) -> datetime | None:
    number = int(month) if month.isdecimal() else _MONTHS.index(month[:3].lower()) + 1
    if int(year) not in _YEARS:
        return None
    try:
        return datetime(int(year), number, int(day), tzinfo=UTC)
    except ValueError:
        return None


def _time_of_day(hours: str, minutes: str, seconds: str | None) -> timedelta:
    return timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds or 0))


def _offset(sign: str | None, hours: str | None, minutes: str | None) -> timedelta:
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    return -offset if sign == "-" else offset
