"""Numbers, units of time and times of day as people write them in questions.

Numbers stand before a unit: 1.5, 2 1/2, three quarters, twenty-five, one and a half. Times of day: 14:05, 2pm, noon.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400
WEEK: Final = 604_800
MONTH: Final = 30 * DAY

UNITS: Final = {  # pattern without groups: seconds
    r"s|secs?|seconds?": 1,
    r"m|mins?|minutes?": MINUTE,
    r"h|hrs?|hours?": HOUR,
    r"d|days?": DAY,
    r"w|wks?|weeks?": WEEK,
    r"months?": MONTH,
}
WEEKDAY: Final = "(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"


_BELOW_20: Final = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS: Final = {
    **{"a": 1, "an": 1, "fourty": 40},
    **{word: number for number, word in enumerate(_BELOW_20.split(), 1)},
    **{word: 10 * number for number, word in enumerate(_TENS.split(), 2)},
}
_PARTS: Final = {  # they multiply the word before
    **dict.fromkeys(("half", "halves"), 0.5),
    **dict.fromkeys(("third", "thirds"), 1 / 3),
    **dict.fromkeys(("quarter", "quarters"), 0.25),
    **dict.fromkeys(("tenth", "tenths"), 0.1),
    **{"couple": 2, "dozen": 12},
}
_POWERS: Final = {"hundred": 100, "thousand": 1000}  # they multiply all before
_SIGNS: Final = {"½": " 1/2", "¼": " 1/4", "¾": " 3/4"}
_WORD: Final = "|".join(sorted({*_WORDS, *_PARTS, *_POWERS}, key=len, reverse=True))
_DIGITS: Final = rf"(?:\d{{1,9}} ?)?(?:\d{{1,9}}/[1-9]\d{{,8}}|[{''.join(_SIGNS)}])|\d{{1,18}}(?:[.,]\d{{1,18}})?"

NUMBER: Final = (
    rf"(?:\d{{1,9}} and an? (?:half|quarter)\b|{_DIGITS}|(?:{_WORD})(?:(?:[ -](?:of|and))?[ -](?:{_WORD})){{,5}}\b)"
)
"""A pattern of such numbers, without groups, for patterns that ignore case."""


def spoken_number(text: str) -> float:
    """The number that a text matched by NUMBER stands for."""
    for sign, fraction in _SIGNS.items():
        text = text.replace(sign, fraction)
    if "/" in text:
        *whole, above, below = (float(part) for part in re.findall(r"\d+", text))
        return sum(whole) + above / below
    digits, _, more = text.lower().partition(" and ")
    if digits[0].isdigit():
        return float(digits.replace(",", ".")) + (_of_words(more) if more else 0.0)
    return _of_words(text.lower())


def _of_words(text: str) -> float:
    total, last, adds = 0.0, 0.0, False
    for word in re.split(
        r"[ -]+", re.sub(r"^an? (?!half|quarter|third|tenth|couple|dozen|hundred|thousand|$)", "", text)
    ):
        if word in _POWERS:
            total, last = 0.0, (total + last or 1.0) * _POWERS[word]
        elif word in _PARTS and last and not adds:
            last *= _PARTS[word]
        elif word in _PARTS or (word in _WORDS and not (last and word in ("a", "an"))):
            total, last, adds = total + last, _PARTS.get(word) or _WORDS[word], False
        adds = adds or word == "and"
    return total + last


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
