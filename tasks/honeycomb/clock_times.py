"""Times of day in a question: 14:05, 2pm, noon, midnight."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

CLOCK: Final = (
    r"(?:(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.\d+)?)?(?![\d:])(?: ?(?P<half>[ap])\.?m\b)?"
    r"|(?P<hour12>\d{1,2}) ?(?P<half12>[ap])\.?m\b|(?P<name>noon|midnight)\b)"
)
"""A pattern with named groups, to be used once in a pattern that ignores case."""

CLOCKS: Final = re.compile(rf"(?<![\w:.]){CLOCK}", re.IGNORECASE)
_TO: Final = r" ?(?:-|–|to|and|until|till) ?"
# Of "2-4pm", "2:30 to 4pm" and "10am to 1".
_BEFORE_HALF: Final = re.compile(
    rf"(?<![\d:.])(\d{{1,2}})(?::(\d{{2}}))?{_TO}\d{{1,2}}(?::\d{{2}})? ?([ap])\.?m", re.IGNORECASE
)
_AFTER_HALF: Final = re.compile(rf"\d ?[ap]\.?m\.?{_TO}(\d{{1,2}})(?::(\d{{2}}))?(?![\d:]| ?[ap])", re.IGNORECASE)
_BEFORE_CLOCK: Final = re.compile(rf"(?<![\d:.-])(\d{{1,2}}){_TO}(?=\d{{1,2}}:\d{{2}})", re.IGNORECASE)
_HOURS: Final = re.compile(r"\b(?:from|between) (\d{1,2}) (?:to|and|until|till) (\d{1,2})\b(?![:.\d])", re.IGNORECASE)
_DAY: Final = timedelta(days=1)


def clock_times(text: str) -> list[timedelta]:
    """Times of day that a text names, in its order, since the beginning of the day.

    A time that is not after the one before is of the next day: "22:00 to 6:00", "18:00 until midnight". Once a time is
    of the next day, the later ones stay as they are.
    """
    times: list[timedelta] = []
    for match in CLOCKS.finditer(text):
        time = time_of_day(match)
        times.append(time + _DAY if times and time <= times[-1] < _DAY else time)
    return times


def bare_hours(text: str) -> list[timedelta]:
    """Times since midnight that clock_times does not find: the 2 of "2-4pm", the 9 of "9 to 17:30".

    Also 14 and 16 of "between 14 and 16", which may be no times, and both 1:00 and 13:00 of "10am to 1".
    """
    found = [timedelta(hours=int(hour)) for match in _HOURS.finditer(text) for hour in match.groups()]
    found += [timedelta(hours=int(hour)) for hour in _BEFORE_CLOCK.findall(text)]
    halves = [*_BEFORE_HALF.findall(text), *((*time, half) for time in _AFTER_HALF.findall(text) for half in "ap")]
    for hour, minute, half in halves:
        found.append(timedelta(hours=int(hour) % 12 + 12 * (half.lower() == "p"), minutes=int(minute or 0)))
    return [time for time in found if time <= _DAY]


def time_of_day(match: re.Match[str]) -> timedelta:
    """The time of day that CLOCK has matched."""
    if match["name"]:
        return timedelta(hours=12 if match["name"].lower() == "noon" else 0)
    hours, half = int(match["hour"] or match["hour12"]), match["half"] or match["half12"]
    if half:
        hours = hours % 12 + (12 if half.lower() == "p" else 0)
    return timedelta(hours=hours, minutes=int(match["minute"] or 0), seconds=int(match["second"] or 0))
