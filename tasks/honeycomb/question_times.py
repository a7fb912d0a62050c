"""The Unix times that a question can mean, where it names a date: a model copies a date well, but converts it badly.

question_times("errors on 2025-03-04")  # Ends(starts=(1741046400,), ends=(1741132800,))
question_times("the hour before 1741046400", [3600])  # Ends(starts=(1741042800,), ends=(1741046400,))
question_times("errors today")  # Ends((), ())
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tasks.honeycomb.question_dates import OTHER_FORMS, PLACE, ZONE, Dates, find_dates
from tasks.honeycomb.question_words import CLOCKS, UNITS, bare_hours, clock_times

_ONE_DAY: Final = timedelta(days=1)
_MAX_TIMES: Final = 64  # a question with more is no question about a time, and would make a large grammar
_UNIX: Final = re.compile(r"(?<![\w.-])[1-9]\d{9}(?![\w.-])")
_TIME: Final = re.escape(PLACE)
_LENGTH: Final = f"(?:{'|'.join(UNITS)}|fortnights?|half|quarter)"
_FROM: Final = re.compile(
    rf"\b{_LENGTH} (?:starting|beginning|from|after|following)(?: at| on| from)? {_TIME}"
    rf"|{_TIME},? for (?:the )?\w+ ?{_LENGTH}\b"
)
_UNTIL: Final = re.compile(
    rf"\b{_LENGTH} (?:before|until|till|up to|leading up to|ending|ended|prior to|preceding)(?: at| on)? {_TIME}"
)
# Words with which an end can be a length away from a date in other ways.
_AROUND: Final = re.compile(
    r"\b(?:for|around|about|either side|within|first|last|final|lasted|next|window|week|commencing|starting|ending|"
    r"after|before|from)\b|[+±]"
)
_DAY_ENDS: Final = re.compile(
    rf"(?:until|till?|before|as of|ending(?: on)?|up to|older than|prior to|to|<=?) '?{_TIME}"
)
_DAY_STARTS: Final = re.compile(rf"(?:after|>) '?{_TIME}")
_WHOLE: Final = re.compile(r"\b(?:through|thru|inclusive|incl)\b", re.IGNORECASE)  # the last day is included


class Ends(NamedTuple):
    """Unix times in seconds, ascending: those at which a range can start, and those at which it can end."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]


def question_times(question: str, lengths: Collection[int] = ()) -> Ends:
    """All times that the dates of a question can mean; empty tuples limit nothing.

    They are empty if the question names no date, one in a form that is not known, or very many. A Unix time counts
    beside a date, or with a length from or up to it. A day without a time of day means its beginning or end, or any
    time of day that the question names; only these if it names one day and two times. A length of time that goes on
    from a date, or up to it, gives the other end.

    Args:
        question: its times are UTC if they have no offset.
        lengths: lengths of time that it names, in seconds, ascending.
    """
    dates = find_dates(question)
    text = _UNIX.sub(PLACE, dates.text).lower()
    unix = {int(number) for number in _UNIX.findall(dates.text)}
    named = {int(moment.timestamp()) for moment in _moments(dates)}
    if ZONE.search(dates.text) or (len(dates.moments) < 2 and OTHER_FORMS.search(dates.text)):
        return Ends((), ())
    times = sorted(named | unix)
    is_one = len(times) == 1 or (len(times) == 2 and len(dates.days) == 1 and not unix)
    if is_one and lengths and (ends := _from_length(text, times[0], lengths)):
        return ends
    if not named or len(times) > _MAX_TIMES:
        return Ends((), ())
    if len(dates.days) > 1 and len(times) <= 2 * len(dates.days) and not dates.moments:
        return Ends((times[0],), tuple(times[-1:] if _WHOLE.search(question) else times[-2:]))
    starts, stops = set(times[:-1] or times), set(times[1:] or times)
    if dates.days and len(times) == 2:
        starts |= set(times) if _DAY_STARTS.search(text) else set()
        stops |= set(times) if _DAY_ENDS.search(text) else set()
    if (is_one or len(times) == 3) and _AROUND.search(text):
        starts |= {time - length for time in times for length in lengths}
        stops |= {time + length for time in times for length in lengths}
    return Ends(tuple(sorted(starts)), tuple(sorted(stops)))


def without_times(question: str) -> str:
    """The question without its dates, times of day and Unix times."""
    return _UNIX.sub(" ", CLOCKS.sub(" ", find_dates(question).text.replace(PLACE, " ")))


def _moments(dates: Dates) -> set[datetime]:
    """The moments that the dates can mean, with the times of day that stand elsewhere in the question; not too many."""
    moments = set(dates.moments)
    days = dates.days | set(dates.clocks)
    clocks, hours = clock_times(dates.text), bare_hours(dates.text)
    if len(days) * len(clocks + hours) > _MAX_TIMES:
        return set()
    if len(dates.days) > 1 or len(clocks) < 2:
        moments |= dates.days | {day + _ONE_DAY for day in dates.days}
    for day in days:
        after = dates.clocks.get(day, timedelta(-1))
        moments |= {day + clock + (_ONE_DAY if clock <= after else timedelta()) for clock in (*clocks, *hours)}
    return moments


def _from_length(text: str, time: int, lengths: Collection[int]) -> Ends | None:
    """The ends of "three hours starting at [time]", "the hour up to [time]"."""
    if _FROM.search(text):
        return Ends((time,), tuple(time + length for length in lengths))
    if _UNTIL.search(text):
        return Ends(tuple(sorted(time - length for length in lengths)), (time,))
    return None
